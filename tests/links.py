"""What tests do with a link that no event loop serves."""

import select


def arrives(link, timeout_s):
    """Wait until a link has something to receive; return whether it has."""
    if not link.has_more and select.select([link.fileno()], [], [], timeout_s)[0]:
        link.arrived()
    return link.has_more
