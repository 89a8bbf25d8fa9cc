"""Names of Kafka 4.3 that are accepted and change nothing here: threads, quorum, quotas, Kerberos, tiered storage.

A server.properties or a container's environment written for Kafka then starts this broker as well; each such name is
logged once. A name that is neither here nor in `config_keys` is a typing error and is refused.
"""

from __future__ import annotations

import re

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
)

_NAMES = frozenset(
    """
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds background.threads
    client.quota.callback.class
    config.providers connection.failed.authentication.delay.ms connections.max.reauth.ms
    controlled.shutdown.enable cordoned.log.dirs create.topic.policy.class.name
    delete.records.purgatory.purge.interval.requests early.start.listeners
    fetch.purgatory.purge.interval.requests follower.fetch.last.tiered.offset.enable
    group.consumer.assignment.interval.ms group.consumer.max.assignment.interval.ms
    group.consumer.min.assignment.interval.ms group.coordinator.append.linger.ms
    group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes group.coordinator.threads
    initial.broker.registration.timeout.ms inter.broker.listener.name kafka.metrics.polling.interval.secs
    kafka.metrics.reporters log.cleaner.dedupe.buffer.size
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
    log.cleaner.threads log.dir.failure.timeout.ms log.initial.task.delay.ms
    max.connection.creation.rate max.connections.per.ip max.connections.per.ip.overrides metric.reporters
    num.io.threads num.network.threads num.recovery.threads.per.data.dir
    num.replica.alter.log.dirs.threads num.replica.fetchers offsets.load.buffer.size
    offsets.topic.compression.codec principal.builder.class process.roles
    producer.purgatory.purge.interval.requests queued.max.requests replica.selector.class
    replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
    replication.quota.window.size.seconds security.inter.broker.protocol security.providers
    sasl.client.callback.handler.class sasl.jaas.config sasl.server.callback.handler.class
    sasl.server.max.receive.size server.max.startup.time.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    socket.receive.buffer.bytes socket.send.buffer.bytes ssl.allow.dn.changes ssl.allow.san.changes
    ssl.cipher.suites ssl.endpoint.identification.algorithm ssl.engine.factory.class
    ssl.keymanager.algorithm ssl.keystore.password ssl.principal.mapping.rules ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.password telemetry.max.bytes
    transaction.state.log.load.buffer.size unclean.leader.election.interval.ms unstable.feature.versions.enable
    """.split()  # noqa: SIM905
)


# What apache/kafka's image keeps out of server.properties: options of its JVM and of log4j.
JVM_VARIABLES = frozenset(
    """
    KAFKA_GC_LOG_OPTS KAFKA_HEAP_OPTS KAFKA_JMX_HOSTNAME KAFKA_JMX_OPTS KAFKA_JMX_PORT KAFKA_JVM_PERFORMANCE_OPTS
    KAFKA_LOG4J_LOGGERS KAFKA_LOG4J_OPTS KAFKA_LOG4J_ROOT_LOGLEVEL KAFKA_OPTS KAFKA_TOOLS_LOG4J_LOGLEVEL KAFKA_VERSION
    """.split()  # noqa: SIM905
)


def names_without_effect() -> list[str]:
    """Those that have no such prefix, in order."""
    return sorted(_NAMES)


def without_effect(name: str) -> bool:
    """True for a key that Kafka knows and this broker ignores."""
    return name in _NAMES or name.startswith(PREFIXES_WITHOUT_EFFECT)


def jaas_listener(name: str) -> str | None:
    """The listener in ``listener.name.<listener>.<mechanism>.sasl.jaas.config``, None for any other name."""
    match = _JAAS_KEY.fullmatch(name)
    return None if match is None else match[1]
