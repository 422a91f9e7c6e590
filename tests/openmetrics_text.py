"""The strict parser of OpenMetrics, for tests."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families


def families_of(text):
    """Return the names of all families; a text that is not OpenMetrics is a `ValueError`."""
    return {each.name for each in text_string_to_metric_families(text)}
