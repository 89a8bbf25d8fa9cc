"""Prometheus names of Kafka's beans, by the rules that the JMX exporter publishes for Kafka.

The rules: ``examples/kafka-2_0_0.yml`` of prometheus/jmx_exporter. Those for quotas and for beans with a clientId
have no use here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_PER_SECOND = "PerSec"


class Bean(NamedTuple):
    """domain, type, name: of the bean's object name; what else is in it becomes labels.
    kind: of the metric that the rules make of it: gauge (attribute Value), counter or summary (Count; a sample with a
        quantile is a percentile).
    """

    domain: str
    type: str
    name: str
    kind: str = "gauge"


class Sample(NamedTuple):
    """One value.

    labels: in the order of the object name.
    """

    bean: Bean
    labels: Mapping[str, str]
    value: float


def prometheus_name(bean: Bean) -> str:
    """Without the suffix of a counter or of a summary's count, which a page of metrics adds."""
    name = bean.name.removesuffix(_PER_SECOND) if bean.kind == "counter" else bean.name
    return "_".join((bean.domain.replace(".", "_"), bean.type, name)).lower()
