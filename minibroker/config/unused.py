# ruff: noqa: E501
"""Kafka 4.3's broker settings that change nothing here: threads, quorum, quotas, Kerberos, tiered storage, share groups.

They are taken, logged once, and shown by DescribeConfigs with Kafka's types and defaults. A server.properties written
for Kafka then starts this broker as well. Defaults: - for none, "" for the empty text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from minibroker.config.types import ConfigKey, ConfigType

_FIXED = """
    alter.config.policy.class.name CLASS -
    alter.log.dirs.replication.quota.window.num INT 11
    alter.log.dirs.replication.quota.window.size.seconds INT 1
    client.quota.callback.class CLASS -
    connection.failed.authentication.delay.ms INT 100
    connections.max.reauth.ms LONG 0
    controlled.shutdown.enable BOOLEAN true
    controller.listener.names LIST ""
    controller.quorum.append.linger.ms INT 25
    controller.quorum.auto.join.enable BOOLEAN false
    controller.quorum.bootstrap.servers LIST ""
    controller.quorum.election.backoff.max.ms INT 1000
    controller.quorum.election.timeout.ms INT 1000
    controller.quorum.fetch.max.bytes INT 1048576
    controller.quorum.fetch.snapshot.max.bytes INT 1048576
    controller.quorum.fetch.timeout.ms INT 2000
    controller.quorum.request.timeout.ms INT 2000
    controller.quorum.retry.backoff.ms INT 20
    controller.quorum.voters LIST ""
    controller.quota.window.num INT 11
    controller.quota.window.size.seconds INT 1
    controller.socket.timeout.ms INT 30000
    create.topic.policy.class.name CLASS -
    delegation.token.expiry.check.interval.ms LONG 3600000
    delegation.token.expiry.time.ms LONG 86400000
    delegation.token.max.lifetime.ms LONG 604800000
    delegation.token.secret.key PASSWORD -
    delete.records.purgatory.purge.interval.requests INT 1
    early.start.listeners LIST -
    fetch.purgatory.purge.interval.requests INT 1000
    group.coordinator.append.linger.ms INT -1
    group.coordinator.background.threads INT 2
    group.coordinator.threads INT 4
    group.share.assignors LIST simple
    group.share.delivery.count.limit INT 5
    group.share.heartbeat.interval.ms INT 5000
    group.share.max.assignment.interval.ms INT 15000
    group.share.max.delivery.count.limit INT 10
    group.share.max.heartbeat.interval.ms INT 15000
    group.share.max.partition.max.record.locks INT 4000
    group.share.max.record.lock.duration.ms INT 60000
    group.share.max.session.timeout.ms INT 60000
    group.share.max.share.sessions INT 2000
    group.share.max.size INT 200
    group.share.min.assignment.interval.ms INT 0
    group.share.min.delivery.count.limit INT 2
    group.share.min.heartbeat.interval.ms INT 5000
    group.share.min.partition.max.record.locks INT 100
    group.share.min.record.lock.duration.ms INT 15000
    group.share.min.session.timeout.ms INT 45000
    group.share.partition.max.record.locks INT 2000
    group.share.record.lock.duration.ms INT 30000
    group.share.session.timeout.ms INT 45000
    group.streams.heartbeat.interval.ms INT 5000
    group.streams.initial.rebalance.delay.ms INT 3000
    group.streams.max.assignment.interval.ms INT 15000
    group.streams.max.heartbeat.interval.ms INT 15000
    group.streams.max.session.timeout.ms INT 60000
    group.streams.max.size INT 2147483647
    group.streams.max.standby.replicas INT 2
    group.streams.min.assignment.interval.ms INT 0
    group.streams.min.heartbeat.interval.ms INT 5000
    group.streams.min.session.timeout.ms INT 45000
    group.streams.num.standby.replicas INT 0
    group.streams.session.timeout.ms INT 45000
    initial.broker.registration.timeout.ms INT 60000
    inter.broker.listener.name STRING -
    kafka.metrics.polling.interval.secs INT 10
    kafka.metrics.reporters LIST ""
    log.dir.failure.timeout.ms LONG 30000
    metadata.log.dir STRING -
    metadata.log.max.record.bytes.between.snapshots LONG 20971520
    metadata.log.max.snapshot.interval.ms LONG 3600000
    metadata.log.segment.bytes INT 1073741824
    metadata.log.segment.ms LONG 604800000
    metadata.max.idle.interval.ms INT 500
    metadata.max.retention.bytes LONG 104857600
    metadata.max.retention.ms LONG 604800000
    metrics.num.samples INT 2
    metrics.recording.level STRING INFO
    metrics.sample.window.ms LONG 30000
    num.replica.alter.log.dirs.threads INT -
    offsets.load.buffer.size INT 5242880
    offsets.topic.compression.codec INT 0
    process.roles LIST ""
    producer.purgatory.purge.interval.requests INT 1000
    queued.max.requests INT 500
    quota.window.num INT 11
    quota.window.size.seconds INT 1
    remote.log.manager.copy.quota.window.num INT 11
    remote.log.manager.copy.quota.window.size.seconds INT 1
    remote.log.manager.fetch.quota.window.num INT 11
    remote.log.manager.fetch.quota.window.size.seconds INT 1
    remote.log.manager.task.interval.ms LONG 30000
    remote.log.manager.thread.pool.size INT 2
    remote.log.metadata.custom.metadata.max.bytes INT 128
    remote.log.metadata.manager.class.name STRING org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
    remote.log.metadata.manager.class.path STRING -
    remote.log.metadata.manager.impl.prefix STRING rlmm.config.
    remote.log.metadata.manager.listener.name STRING -
    remote.log.reader.max.pending.tasks INT 100
    remote.log.storage.manager.class.name STRING -
    remote.log.storage.manager.class.path STRING -
    remote.log.storage.manager.impl.prefix STRING rsm.config.
    remote.log.storage.system.enable BOOLEAN false
    replica.selector.class STRING -
    replica.socket.receive.buffer.bytes INT 65536
    replica.socket.timeout.ms INT 30000
    replication.quota.window.num INT 11
    replication.quota.window.size.seconds INT 1
    sasl.client.callback.handler.class CLASS -
    sasl.login.callback.handler.class CLASS -
    sasl.login.class CLASS -
    sasl.login.connect.timeout.ms INT -
    sasl.login.read.timeout.ms INT -
    sasl.login.retry.backoff.max.ms LONG 10000
    sasl.login.retry.backoff.ms LONG 100
    sasl.mechanism.controller.protocol STRING GSSAPI
    sasl.oauthbearer.assertion.algorithm STRING RS256
    sasl.oauthbearer.assertion.claim.aud STRING -
    sasl.oauthbearer.assertion.claim.exp.seconds INT 300
    sasl.oauthbearer.assertion.claim.iss STRING -
    sasl.oauthbearer.assertion.claim.jti.include BOOLEAN false
    sasl.oauthbearer.assertion.claim.nbf.seconds INT 60
    sasl.oauthbearer.assertion.claim.sub STRING -
    sasl.oauthbearer.assertion.file STRING -
    sasl.oauthbearer.assertion.private.key.file STRING -
    sasl.oauthbearer.assertion.private.key.passphrase PASSWORD -
    sasl.oauthbearer.assertion.template.file STRING -
    sasl.oauthbearer.client.credentials.client.id STRING -
    sasl.oauthbearer.client.credentials.client.secret PASSWORD -
    sasl.oauthbearer.clock.skew.seconds INT 30
    sasl.oauthbearer.expected.audience LIST ""
    sasl.oauthbearer.expected.issuer STRING -
    sasl.oauthbearer.jwks.endpoint.refresh.ms LONG 3600000
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG 10000
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG 100
    sasl.oauthbearer.jwks.endpoint.url STRING -
    sasl.oauthbearer.jwt.retriever.class CLASS org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
    sasl.oauthbearer.jwt.validator.class CLASS org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
    sasl.oauthbearer.scope STRING -
    sasl.oauthbearer.scope.claim.name STRING scope
    sasl.oauthbearer.sub.claim.name STRING sub
    sasl.oauthbearer.token.endpoint.url STRING -
    sasl.server.callback.handler.class CLASS -
    sasl.server.max.receive.size INT 524288
    security.inter.broker.protocol STRING PLAINTEXT
    security.providers STRING -
    share.coordinator.append.linger.ms INT -1
    share.coordinator.load.buffer.size INT 5242880
    share.coordinator.snapshot.update.records.per.snapshot INT 500
    share.coordinator.state.topic.compression.codec INT 0
    share.coordinator.state.topic.min.isr SHORT 2
    share.coordinator.state.topic.num.partitions INT 50
    share.coordinator.state.topic.replication.factor SHORT 3
    share.coordinator.state.topic.segment.bytes INT 104857600
    share.coordinator.threads INT 1
    share.coordinator.write.timeout.ms INT 5000
    share.fetch.purgatory.purge.interval.requests INT 1000
    socket.connection.setup.timeout.max.ms LONG 30000
    socket.connection.setup.timeout.ms LONG 10000
    socket.receive.buffer.bytes INT 102400
    socket.send.buffer.bytes INT 102400
    ssl.allow.dn.changes BOOLEAN false
    ssl.allow.san.changes BOOLEAN false
    ssl.principal.mapping.rules STRING DEFAULT
    telemetry.max.bytes INT 1048576
    transaction.state.log.load.buffer.size INT 5242880
"""

_DYNAMIC = """
    background.threads INT 10
    config.providers LIST ""
    cordoned.log.dirs LIST ""
    follower.fetch.last.tiered.offset.enable BOOLEAN false
    group.coordinator.cached.buffer.max.bytes INT 1048588
    group.share.assignment.interval.ms INT 1000
    group.streams.assignment.interval.ms INT 1000
    log.cleaner.dedupe.buffer.size LONG 134217728
    log.cleaner.io.buffer.load.factor DOUBLE 0.9
    log.cleaner.io.buffer.size INT 524288
    log.cleaner.io.max.bytes.per.second DOUBLE 1.7976931348623157E308
    log.cleaner.threads INT 1
    max.connection.creation.rate INT 2147483647
    max.connections.per.ip INT 2147483647
    max.connections.per.ip.overrides STRING ""
    metric.reporters LIST org.apache.kafka.common.metrics.JmxReporter
    num.io.threads INT 8
    num.network.threads INT 3
    num.recovery.threads.per.data.dir INT 2
    num.replica.fetchers INT 1
    principal.builder.class CLASS org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
    remote.fetch.max.wait.ms INT 500
    remote.list.offsets.request.timeout.ms LONG 30000
    remote.log.index.file.cache.total.size.bytes LONG 1073741824
    remote.log.manager.copier.thread.pool.size INT 10
    remote.log.manager.copy.max.bytes.per.second LONG 9223372036854775807
    remote.log.manager.expiration.thread.pool.size INT 10
    remote.log.manager.fetch.max.bytes.per.second LONG 9223372036854775807
    remote.log.manager.follower.thread.pool.size INT 2
    remote.log.reader.threads INT 10
    sasl.jaas.config PASSWORD -
    sasl.kerberos.kinit.cmd STRING /usr/bin/kinit
    sasl.kerberos.min.time.before.relogin LONG 60000
    sasl.kerberos.principal.to.local.rules LIST DEFAULT
    sasl.kerberos.service.name STRING -
    sasl.kerberos.ticket.renew.jitter DOUBLE 0.05
    sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8
    sasl.login.refresh.buffer.seconds SHORT 300
    sasl.login.refresh.min.period.seconds SHORT 60
    sasl.login.refresh.window.factor DOUBLE 0.8
    sasl.login.refresh.window.jitter DOUBLE 0.05
    sasl.mechanism.inter.broker.protocol STRING GSSAPI
    share.coordinator.cached.buffer.max.bytes INT 1048588
    ssl.cipher.suites LIST ""
    ssl.endpoint.identification.algorithm STRING https
    ssl.engine.factory.class CLASS -
    ssl.keymanager.algorithm STRING SunX509
    ssl.keystore.password PASSWORD -
    ssl.protocol STRING TLSv1.3
    ssl.provider STRING -
    ssl.secure.random.implementation STRING -
    ssl.trustmanager.algorithm STRING PKIX
    ssl.truststore.password PASSWORD -
"""


def _keys() -> Iterator[ConfigKey]:
    for table, dynamic in ((_FIXED, False), (_DYNAMIC, True)):
        for line in filter(None, table.splitlines()):
            name, kind, default = line.split()
            text = "" if default == '""' else default
            key = ConfigKey(name, ConfigType[kind], None, "Without effect here.", dynamic=dynamic, effect=False)
            yield key if default == "-" else key._replace(default=key.parse(text))


UNUSED_KEYS: Mapping[str, ConfigKey] = MappingProxyType({key.name: key for key in _keys()})
