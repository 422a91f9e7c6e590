"""Promoted: checks whether a copy was promoted to a new cluster, and therefore must not grow."""

import os
from typing import Final

from rt.errors import Misuse
from rt.log.files.identity import read_log_identity
from rt.net.authority.files import read_file
from rt.net.authority.succession import SUCCESSION_BYTES_MAX, said_in

SUCCESSION_NAME: Final = "standby.succession"  # next to the copy; `rt standby promote` writes it


def succession_beside(directory: str) -> str:
    """Return the path of the file next to a copy that names the log continuing the copy's log."""
    return os.path.join(os.path.dirname(os.path.abspath(directory)), SUCCESSION_NAME)


def promoted_to(directory: str) -> str:
    """Return the addresses of the cluster that a copy was promoted to; "" if it was not.

    Raises:
        Misuse: the file that names the cluster cannot be read.
        ManifestError: the copy's manifest is damaged.
    """
    try:
        found = said_in(read_file(succession_beside(directory), SUCCESSION_BYTES_MAX))
    except FileNotFoundError:
        return ""
    identity = read_log_identity(directory)
    return found.moved_to if identity is not None and identity.id == found.old else ""


def demand_current(directory: str) -> None:
    """Raise `Misuse` if a copy was promoted; errors as for `promoted_to`."""
    if moved_to := promoted_to(directory):
        raise Misuse(
            f"{directory} takes nothing more: it was promoted, and its log continues at "
            f"{moved_to}; rt standby rejoin makes it a copy of that"
        )
