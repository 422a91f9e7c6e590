"""SiteCollector: passes a site's metrics to prometheus-client at each scrape."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rt.latencies import BOUNDS_S, LatencyCounts
from rt.web.serving.site import Site

Labels = tuple[str, ...]


class SiteCollector(Collector):
    """Collects at scrape time, so that series of removed objects disappear by themselves."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def collect(self) -> Iterable[Metric]:
        """Yield the site's metrics."""
        return self._site.metrics()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: metrics are not described before they are collected."""
        return []


def gauge(
    name: str, words: str, values: Mapping[Any, float] | float, labels: Labels = ()
) -> Metric:
    """Return a gauge with one value, or with one for each combination of labels."""
    family = GaugeMetricFamily(name, words, labels=labels)
    for key, value in _values(values):
        family.add_metric(key, value)
    return family


def counter(
    name: str, words: str, values: Mapping[Any, float] | float, labels: Labels = ()
) -> Metric:
    """Return a counter; its samples end in `_total`."""
    family = CounterMetricFamily(name, words, labels=labels)
    for key, value in _values(values):
        family.add_metric(key, value)
    return family


def histogram(
    name: str, words: str, counted: Mapping[Any, LatencyCounts], labels: Labels = ()
) -> Metric:
    """Return a histogram of latencies."""
    family = HistogramMetricFamily(name, words, labels=labels)
    for key, each in counted.items():
        family.add_metric(key, list(_buckets(each)), each.sum_s)
    return family


def _values(values: Mapping[Any, float] | float) -> Iterable[tuple[Labels, float]]:
    return values.items() if isinstance(values, Mapping) else [((), values)]


def _buckets(counted: LatencyCounts) -> Iterator[tuple[str, float]]:
    below = 0
    for bound, count in zip((*map(repr, BOUNDS_S), "+Inf"), counted.counts, strict=True):
        below += count
        yield bound, below
