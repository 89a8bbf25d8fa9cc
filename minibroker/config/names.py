"""Names of Kafka that are accepted and change nothing here: threads, quorum, quotas, Kerberos, tiered storage.

A server.properties or a container's environment written for Kafka then starts this broker as well; each such name is
logged once. A name that is neither here nor in `config.keys` is a typing error and is refused.
"""

from __future__ import annotations

import re

from minibroker.config.unused import UNUSED_KEYS

_JAAS_KEY = re.compile(r"listener\.name\.([^.]+)\.[^.]+\.sasl\.jaas\.config", re.IGNORECASE)
PREFIXES_WITHOUT_EFFECT = (
    "controller.",
    "delegation.token.",
    "group.share.",
    "group.streams.",
    "internal.",
    "listener.name.",
    "metadata.",
    "metrics.",
    "quota.",
    "remote.",
    "sasl.kerberos.",
    "sasl.login.",
    "sasl.mechanism.",
    "sasl.oauthbearer.",
    "share.",
    # Every server.properties of a Kafka before 4.0 has zookeeper.connect; Kafka 4 ignores these names too.
    "zookeeper.",
)

_INTERNAL = frozenset(
    {
        "log.initial.task.delay.ms",
        "server.max.startup.time.ms",
        "unclean.leader.election.interval.ms",
        "unstable.feature.versions.enable",
    }
)
"""Ignored names that DescribeConfigs of Kafka does not show."""

# Variables that apache/kafka's image keeps out of server.properties: options of its JVM and of log4j.
JVM_VARIABLES = frozenset(
    """
    KAFKA_GC_LOG_OPTS KAFKA_HEAP_OPTS KAFKA_JMX_HOSTNAME KAFKA_JMX_OPTS KAFKA_JMX_PORT KAFKA_JVM_PERFORMANCE_OPTS
    KAFKA_LOG4J_LOGGERS KAFKA_LOG4J_OPTS KAFKA_LOG4J_ROOT_LOGLEVEL KAFKA_OPTS KAFKA_TOOLS_LOG4J_LOGLEVEL KAFKA_VERSION
    """.split()  # noqa: SIM905
)


def without_effect(name: str) -> bool:
    """True for a key that Kafka knows and this broker ignores."""
    return name in UNUSED_KEYS or name in _INTERNAL or name.startswith(PREFIXES_WITHOUT_EFFECT)


def jaas_listener(name: str) -> str | None:
    """The listener in ``listener.name.<listener>.<mechanism>.sasl.jaas.config``, None for any other name."""
    match = _JAAS_KEY.fullmatch(name)
    return None if match is None else match[1]
