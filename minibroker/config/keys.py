"""Every configuration key this broker obeys, under Kafka's name, with type, default, range and meaning.

The one table behind ``-c key=value``, the ``KAFKA_*`` environment, DescribeConfigs and the documentation. Types and
defaults are those of Kafka 4.3's ``AbstractKafkaConfig`` and ``LogConfig`` except where ``deviation`` says why not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minibroker.config.types import ConfigKey, ConfigType, Scope, Value
from minibroker.releases.semantics import FIELDS, KAFKA, TRANSACTION_VERSION_FIELD

SEMANTICS_PREFIX = "minibroker.semantics."
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

BOOLEAN, STRING, INT, SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
LONG, DOUBLE, LIST, PASSWORD = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST, ConfigType.PASSWORD

_ONE_BROKER = "Kafka's default asks for more brokers than the one that usually runs here"
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_WEEK_MS = 7 * 24 * 3600 * 1000
_DAY_MS = 24 * 3600 * 1000

_Keys = dict[str, ConfigKey]


def _rows(into: _Keys, **shared: bool | Scope) -> Callable[..., None]:
    def row(name: str, kind: ConfigType, default: Value, doc: str, **more: object) -> None:
        into[name] = ConfigKey(name, kind, default, doc, **{**shared, **more})  # type: ignore[arg-type]

    return row


def _broker_keys() -> _Keys:
    keys: _Keys = {}
    key = _rows(keys)
    dynamic = _rows(keys, dynamic=True)
    _add_server_keys(key, dynamic)
    _add_security_keys(key)
    _add_log_keys(key, dynamic)
    _add_replication_keys(key, dynamic)
    _add_group_keys(key, dynamic)
    _add_transaction_keys(key, dynamic)
    _add_own_keys(_rows(keys, scope=Scope.MINIBROKER))
    _add_semantics_keys(_rows(keys, scope=Scope.MINIBROKER))
    return keys


def _add_server_keys(key: Callable[..., None], dynamic: Callable[..., None]) -> None:
    key("auto.create.topics.enable", BOOLEAN, True, "Create a topic when a client first asks for it.")
    key("listeners", STRING, None, "Where a single broker listens, NAME://HOST:PORT,…; outweighs host and port.")
    key(
        "advertised.listeners",
        STRING,
        None,
        "How clients of each listener reach a single broker, NAME://HOST:PORT,…; unset: by the address they came to.",
    )
    key("listener.security.protocol.map", STRING, None, "NAME:PROTOCOL,…: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL.")
    key("node.id", INT, None, "Id of a single broker; unset: that of its data directory, 1 in a new one.", minimum=0)
    key("broker.id", INT, None, "Older name of node.id, which takes precedence.", minimum=0)
    key("log.dir", STRING, None, "The data directory, unless given in another way.")
    key("log.dirs", STRING, None, "The data directory; takes precedence over log.dir.")
    key("num.partitions", INT, 1, "Partitions of a topic that was created without a count.", minimum=1)
    key("default.replication.factor", INT, 1, "Replicas of a topic that was created without a count.", minimum=1)
    key("delete.topic.enable", BOOLEAN, True, "Whether DeleteTopics may delete topics.")
    key("connections.max.idle.ms", LONG, 600_000, "Close a connection that carried nothing for this long.")
    key("socket.request.max.bytes", INT, 104_857_600, "Largest request; a longer one closes its connection.", minimum=1)
    key(
        "socket.listen.backlog.size",
        INT,
        1024,
        "Length of the system's queue of connections to accept.",
        minimum=1,
        deviation="Kafka's 50 fill up quickly where one thread accepts and serves; a further client waits a second",
    )
    key(
        "queued.max.request.bytes",
        LONG,
        256 * 1024 * 1024,
        "Bytes of requests in memory over all connections; beyond it sockets are not read. -1: no limit.",
        minimum=-1,
        deviation="Kafka sets no limit, but clients should not use up the memory of a test process",
    )
    dynamic("max.connections", INT, INT32_MAX, "Most connections at one time.", minimum=0)
    dynamic("message.max.bytes", INT, 1_048_588, "Largest record batch, unless the topic has its own limit.", minimum=0)
    key("fetch.max.bytes", INT, 57_671_680, "Most bytes of records in one fetch response.", minimum=1024)
    key("max.incremental.fetch.session.cache.slots", INT, 1000, "Fetch sessions kept at one time.", minimum=0)
    key(
        "max.request.partition.size.limit",
        INT,
        2000,
        "Most partitions in one DescribeTopicPartitions answer.",
        minimum=1,
    )
    key("broker.heartbeat.interval.ms", INT, 2000, "Interval of a broker's heartbeats to the controller.", minimum=1)
    key(
        "broker.session.timeout.ms",
        INT,
        9000,
        "A broker without a heartbeat for this long is fenced; in real time, and up to a ninth later.",
        minimum=1,
    )
    key("request.timeout.ms", INT, 30_000, "How long a request between brokers may take.")
    key(
        "unstable.api.versions.enable",
        BOOLEAN,
        False,
        "Also serve request versions that Kafka has not declared stable.",
        internal=True,
    )
    key("broker.rack", STRING, None, "Rack of the brokers, shown in Metadata.")


def _add_security_keys(key: Callable[..., None]) -> None:
    pem = "JKS and PKCS12 are Java's formats"
    for store in ("keystore", "truststore"):
        key(f"ssl.{store}.type", STRING, "PEM", f"Format of the {store}.", choices=("PEM",), deviation=pem)
    key("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), "Versions of TLS.")
    key("ssl.keystore.location", STRING, None, "PEM file with private key and certificate chain, for TLS listeners.")
    key("ssl.keystore.key", PASSWORD, None, "The private key itself, as PEM, instead of a file.")
    key("ssl.keystore.certificate.chain", PASSWORD, None, "The certificate chain that belongs to that key, as PEM.")
    key("ssl.key.password", PASSWORD, None, "Password of an encrypted private key.")
    key("ssl.truststore.location", STRING, None, "PEM file of the CAs whose client certificates are accepted.")
    key("ssl.truststore.certificates", PASSWORD, None, "The CA certificates themselves, as PEM, instead of a file.")
    key(
        "ssl.client.auth",
        STRING,
        "none",
        "Whether clients of TLS listeners must, may or need not send a certificate.",
        choices=("required", "requested", "none"),
    )
    key(
        "authorizer.class.name",
        STRING,
        "",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer. Empty: every client may do anything.",
    )
    key("super.users", STRING, "", "Users who may do anything, regardless of ACL entries: User:NAME;User:NAME….")
    key("allow.everyone.if.no.acl.found", BOOLEAN, False, "Whether every user may use a resource without ACL entries.")
    key(
        "sasl.enabled.mechanisms",
        LIST,
        ("PLAIN",),
        "Mechanisms of SASL listeners: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512.",
        deviation="Kafka's GSSAPI needs a Kerberos server",
    )


def _add_log_keys(key: Callable[..., None], dynamic: Callable[..., None]) -> None:
    dynamic("log.segment.bytes", INT, 1 << 30, "Size at which a new segment is rolled.", minimum=1_048_576)
    key("log.roll.hours", INT, 168, "Age at which a new segment is rolled, in hours.", minimum=1)
    dynamic(
        "log.roll.ms",
        LONG,
        None,
        "The same in milliseconds; takes precedence over hours.",
        synonyms=("log.roll.hours",),
    )
    key("log.roll.jitter.hours", INT, 0, "Largest random reduction of that age, in hours.", minimum=0)
    dynamic("log.roll.jitter.ms", LONG, None, "The same in milliseconds.", synonyms=("log.roll.jitter.hours",))
    key("log.retention.hours", INT, 168, "How long records are kept, in hours.")
    key(
        "log.retention.minutes",
        INT,
        None,
        "The same in minutes; takes precedence over hours.",
        synonyms=("log.retention.hours",),
    )
    dynamic(
        "log.retention.ms",
        LONG,
        None,
        "The same in milliseconds; takes precedence over both. -1: for ever.",
        synonyms=("log.retention.minutes", "log.retention.hours"),
    )
    dynamic("log.retention.bytes", LONG, -1, "Most bytes a partition keeps. -1: no limit.")
    key("log.retention.check.interval.ms", LONG, 300_000, "How often retention looks for old segments.", minimum=1)
    dynamic("log.cleanup.policy", LIST, ("delete",), "What happens to old records.", choices=("compact", "delete"))
    dynamic("log.index.size.max.bytes", INT, 10_485_760, "Largest offset index.", minimum=4)
    dynamic("log.index.interval.bytes", INT, 4096, "Bytes of log between two index entries.", minimum=0)
    dynamic(
        "log.flush.interval.messages",
        LONG,
        INT64_MAX,
        "Records between two syncs to disk; the batch that reaches it is acknowledged after the sync.",
        minimum=1,
    )
    dynamic(
        "log.flush.interval.ms",
        LONG,
        None,
        "Longest time until a record is synced to disk.",
        synonyms=("log.flush.scheduler.interval.ms",),
    )
    key("log.flush.scheduler.interval.ms", LONG, INT64_MAX, "Default of log.flush.interval.ms.")
    key("log.flush.offset.checkpoint.interval.ms", INT, 60_000, "Interval of recovery point checkpoints.", minimum=0)
    key("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, "Interval of log start checkpoints.", minimum=0)
    dynamic("log.segment.delete.delay.ms", LONG, 60_000, "Delay before a removed file is deleted.", minimum=0)
    dynamic("log.preallocate", BOOLEAN, False, "Default of the topic key preallocate.")
    dynamic(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "Whether records carry the client's timestamp or the append time.",
        choices=("CreateTime", "LogAppendTime"),
    )
    dynamic(
        "log.message.timestamp.before.max.ms", LONG, INT64_MAX, "How far a timestamp may lie in the past.", minimum=0
    )
    dynamic(
        "log.message.timestamp.after.max.ms", LONG, 3_600_000, "How far a timestamp may lie in the future.", minimum=0
    )
    dynamic("compression.type", STRING, "producer", "Codec on disk; producer keeps the client's.", choices=_CODECS)
    dynamic(
        "compression.gzip.level",
        INT,
        -1,
        "Level when the broker compresses with gzip.",
        minimum=1,
        maximum=9,
        besides=-1,
    )
    dynamic("compression.lz4.level", INT, 9, "Level when the broker compresses with lz4.", minimum=1, maximum=17)
    dynamic(
        "compression.zstd.level", INT, 3, "Level when the broker compresses with zstd.", minimum=-131_072, maximum=22
    )
    key("log.cleaner.enable", BOOLEAN, True, "Whether compaction runs.")
    dynamic("log.cleaner.backoff.ms", LONG, 15_000, "Pause of compaction when there is nothing to compact.", minimum=0)
    dynamic("log.cleaner.delete.retention.ms", LONG, _DAY_MS, "How long compaction keeps tombstones.", minimum=0)
    dynamic("log.cleaner.min.compaction.lag.ms", LONG, 0, "Least age of a record that is compacted.", minimum=0)
    dynamic("log.cleaner.max.compaction.lag.ms", LONG, INT64_MAX, "Age at which a record must be compacted.", minimum=1)
    dynamic(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        0.5,
        "Share of dirty bytes that starts compaction.",
        minimum=0,
        maximum=1,
    )
    dynamic("log.local.retention.ms", LONG, -2, "Default of the topic key local.retention.ms.", minimum=-2)
    dynamic("log.local.retention.bytes", LONG, -2, "Default of the topic key local.retention.bytes.", minimum=-2)


def _add_replication_keys(key: Callable[..., None], dynamic: Callable[..., None]) -> None:
    dynamic("min.insync.replicas", INT, 1, "In-sync replicas a write with acks=all needs.", minimum=1)
    dynamic("unclean.leader.election.enable", BOOLEAN, False, "Whether an out-of-sync replica may become leader.")
    key("replica.lag.time.max.ms", LONG, 30_000, "A follower that lags for longer leaves the in-sync replicas.")
    key("replica.fetch.max.bytes", INT, 1_048_576, "Most bytes of a partition in a follower's fetch.", minimum=0)
    key("replica.fetch.response.max.bytes", INT, 10_485_760, "Most bytes in a follower's fetch.", minimum=0)
    key("replica.fetch.wait.max.ms", INT, 500, "How long a follower's fetch may wait for data.")
    key("replica.fetch.min.bytes", INT, 1, "Least bytes of data that end that wait.")
    key("replica.fetch.backoff.ms", INT, 1000, "Pause of a follower after an error.", minimum=0)
    key("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, "Interval of high watermark checkpoints.")
    key("auto.leader.rebalance.enable", BOOLEAN, True, "Whether preferred replicas are elected periodically.")
    key("leader.imbalance.check.interval.seconds", LONG, 300, "Interval of these elections.", minimum=1)


def _add_group_keys(key: Callable[..., None], dynamic: Callable[..., None]) -> None:
    key("offsets.topic.num.partitions", INT, 50, "Partitions of __consumer_offsets.", minimum=1)
    key(
        "offsets.topic.replication.factor",
        SHORT,
        1,
        "Replicas of __consumer_offsets.",
        minimum=1,
        deviation=f"{_ONE_BROKER} (3)",
    )
    key("offsets.topic.segment.bytes", INT, 104_857_600, "Segment size of __consumer_offsets.", minimum=1)
    key("offset.metadata.max.bytes", INT, 4096, "Longest text kept with a committed offset.")
    key("offsets.retention.minutes", INT, 10_080, "How long offsets outlive the last use of their group.", minimum=1)
    key("offsets.retention.check.interval.ms", LONG, 600_000, "How often expired offsets are looked for.", minimum=1)
    key("offsets.commit.timeout.ms", INT, 5000, "How long an offset commit may wait for its replicas.", minimum=1)
    key(
        "group.initial.rebalance.delay.ms",
        INT,
        0,
        "How long the first rebalance of an empty group waits for more members.",
        deviation="with Kafka's 3000 ms every test with a consumer group waits three seconds",
    )
    key("group.min.session.timeout.ms", INT, 6000, "Shortest session timeout a classic member may ask for.")
    key("group.max.session.timeout.ms", INT, 1_800_000, "Longest session timeout a classic member may ask for.")
    key("group.max.size", INT, INT32_MAX, "Most members of a classic group.", minimum=1)
    key(
        "group.coordinator.rebalance.protocols",
        LIST,
        ("classic", "consumer"),
        "Group protocols that are served.",
        choices=("classic", "consumer"),
        deviation="streams groups are not served",
    )
    key("group.consumer.session.timeout.ms", INT, 45_000, "Session timeout of consumer group members.", minimum=1)
    key("group.consumer.min.session.timeout.ms", INT, 45_000, "Least a group may set that to.", minimum=1)
    key("group.consumer.max.session.timeout.ms", INT, 60_000, "Most a group may set that to.", minimum=1)
    key("group.consumer.heartbeat.interval.ms", INT, 5000, "Heartbeat interval told to members.", minimum=1)
    key("group.consumer.min.heartbeat.interval.ms", INT, 5000, "Least a group may set that to.", minimum=1)
    key("group.consumer.max.heartbeat.interval.ms", INT, 15_000, "Most a group may set that to.", minimum=1)
    dynamic(
        "group.consumer.assignment.interval.ms",
        INT,
        0,
        "Least time between two target assignments of a consumer group. 0: one with every change.",
        minimum=0,
        deviation="with Kafka's 1000 ms a second member waits for its next heartbeat, five seconds later",
    )
    key("group.consumer.min.assignment.interval.ms", INT, 0, "Least a group may set that to.", minimum=0)
    key("group.consumer.max.assignment.interval.ms", INT, 15_000, "Most a group may set that to.", minimum=0)
    key("group.consumer.max.size", INT, INT32_MAX, "Most members of a consumer group.", minimum=1)
    key(
        "group.consumer.assignors",
        LIST,
        ("uniform", "range"),
        "Assignors, the default first.",
        choices=("uniform", "range"),
    )
    key(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Which way a group may change between the classic and the consumer protocol.",
        choices=("disabled", "downgrade", "upgrade", "bidirectional"),
    )
    key(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        600_000,
        "How often subscribed patterns are matched again.",
        minimum=10_000,
        internal=True,
    )


def _add_transaction_keys(key: Callable[..., None], dynamic: Callable[..., None]) -> None:
    key("transactional.id.expiration.ms", INT, _WEEK_MS, "An idle transactional id is forgotten after this.", minimum=1)
    key("transaction.max.timeout.ms", INT, 900_000, "Longest transaction timeout a producer may ask for.", minimum=1)
    key("transaction.state.log.num.partitions", INT, 50, "Partitions of __transaction_state.", minimum=1)
    key(
        "transaction.state.log.replication.factor",
        SHORT,
        1,
        "Replicas of __transaction_state.",
        minimum=1,
        deviation=f"{_ONE_BROKER} (3)",
    )
    key(
        "transaction.state.log.min.isr",
        INT,
        1,
        "In-sync replicas a write to __transaction_state needs.",
        minimum=1,
        deviation=f"{_ONE_BROKER} (2)",
    )
    key("transaction.state.log.segment.bytes", INT, 104_857_600, "Segment size of __transaction_state.", minimum=1)
    key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10_000,
        "How often transactions past their timeout are looked for.",
        minimum=1,
    )
    key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        3_600_000,
        "How often expired transactional ids are looked for.",
        minimum=1,
    )
    key("transaction.two.phase.commit.enable", BOOLEAN, False, "Whether producers may ask for two-phase commit.")
    dynamic(
        "transaction.partition.verification.enable",
        BOOLEAN,
        True,
        "Ask the coordinator before a partition joins a transaction (KIP-890).",
    )
    dynamic("producer.id.expiration.ms", INT, _DAY_MS, "A partition forgets an idle producer after this.", minimum=1)
    key(
        "producer.id.expiration.check.interval.ms",
        INT,
        600_000,
        "How often idle producers are looked for.",
        minimum=1,
        internal=True,
    )
    key(
        "add.partitions.to.txn.retry.backoff.ms",
        INT,
        20,
        "First pause before an implicit add is tried again.",
        minimum=1,
    )
    key("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, "Longest such pause.", minimum=0)


def _add_own_keys(key: Callable[..., None]) -> None:
    key(
        "minibroker.acknowledge.after.sync",
        BOOLEAN,
        False,
        "Sync every batch to disk before it is acknowledged and visible to consumers, internal topics included, as "
        "flush.messages=1 does for one topic. Batches that arrive during a sync share the next one.",
    )
    key(
        "minibroker.inter.broker.sockets",
        BOOLEAN,
        False,
        "Connect brokers and controller over TCP on the loopback interface instead of inside the process, so that a "
        "capture shows their requests.",
    )
    key(
        "minibroker.refuse.lost.data",
        BOOLEAN,
        False,
        "Do not start on a data directory that lacks data to which its checkpoints, producer snapshots, indexes or "
        "metadata journal refer. Missing data is logged in any case.",
    )
    key("minibroker.cluster.id", STRING, None, "Cluster id of a new data directory; an existing one must have it.")
    key(
        "minibroker.ephemeral.max.bytes",
        LONG,
        1 << 30,
        "Most bytes --ephemeral keeps over all topics.",
        minimum=1_048_576,
    )
    key(
        "minibroker.queued.max.response.bytes",
        LONG,
        256 * 1024 * 1024,
        "Bytes of responses that clients have not read yet, over all connections. Beyond it a fetch is answered with "
        "one batch, and a client that reads nothing for five seconds is closed. -1: no limit.",
        minimum=-1,
    )
    key(
        "minibroker.loop.lag.max.ms",
        INT,
        0,
        "Log a warning when the event loop was blocked for longer. 0: off.",
        minimum=0,
    )
    key(
        "minibroker.security.protocol",
        STRING,
        "PLAINTEXT",
        "Security protocol of every broker's port, unless `listeners` is set.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    key(
        "minibroker.sasl.users",
        PASSWORD,
        None,
        "NAME:PASSWORD,… for all SASL mechanisms, in addition to listener.name.*.plain.sasl.jaas.config.",
    )
    key(
        "minibroker.ssl.ca.location",
        STRING,
        None,
        "File for the CA certificate that clients must trust when the broker's certificate is generated at start.",
    )
    key("minibroker.uvloop", BOOLEAN, True, "Run on uvloop where it is installed.")
    key(
        "minibroker.shutdown.timeout.ms",
        INT,
        3000,
        "How long a shutdown waits until applied requests are answered.",
        minimum=0,
    )


def _add_semantics_keys(key: Callable[..., None]) -> None:
    """One key for each difference between the semantics; unset, the value is that of the chosen semantics."""
    for spec in FIELDS:
        if spec.name == TRANSACTION_VERSION_FIELD:
            continue
        value = spec.of(KAFKA)
        if isinstance(value, bool):
            kind = BOOLEAN
        else:
            kind = INT if isinstance(value, int) and not spec.choices else STRING
        key(f"{SEMANTICS_PREFIX}{spec.name}", kind, None, spec.doc, choices=spec.choices)


def _topic_keys() -> _Keys:
    keys: _Keys = {}
    row = _rows(keys, scope=Scope.TOPIC, dynamic=True)

    def key(
        name: str, kind: ConfigType, default: Value, doc: str, broker_key: str | None = None, **more: object
    ) -> None:
        synonyms = (broker_key,) if broker_key else ()
        row(name, kind, default, doc, synonyms=synonyms, **more)

    key(
        "cleanup.policy",
        LIST,
        ("delete",),
        "What happens to old records.",
        "log.cleanup.policy",
        choices=("compact", "delete"),
    )
    key(
        "compression.type",
        STRING,
        "producer",
        "Codec on disk; producer keeps the client's.",
        "compression.type",
        choices=_CODECS,
    )
    key(
        "compression.gzip.level", INT, -1, "Level for gzip.", "compression.gzip.level", minimum=1, maximum=9, besides=-1
    )
    key("compression.lz4.level", INT, 9, "Level for lz4.", "compression.lz4.level", minimum=1, maximum=17)
    key("compression.zstd.level", INT, 3, "Level for zstd.", "compression.zstd.level", minimum=-131_072, maximum=22)
    key(
        "delete.retention.ms",
        LONG,
        _DAY_MS,
        "How long compaction keeps tombstones and transaction markers.",
        "log.cleaner.delete.retention.ms",
        minimum=0,
    )
    key(
        "file.delete.delay.ms",
        LONG,
        60_000,
        "Delay before a removed file is deleted.",
        "log.segment.delete.delay.ms",
        minimum=0,
    )
    key(
        "flush.messages",
        LONG,
        INT64_MAX,
        "Records between two syncs to disk.",
        "log.flush.interval.messages",
        minimum=1,
    )
    key(
        "flush.ms",
        LONG,
        INT64_MAX,
        "Longest time until a record is synced to disk.",
        "log.flush.interval.ms",
        minimum=0,
    )
    key(
        "index.interval.bytes",
        INT,
        4096,
        "Bytes of log between two index entries.",
        "log.index.interval.bytes",
        minimum=0,
    )
    key(
        "max.compaction.lag.ms",
        LONG,
        INT64_MAX,
        "Age at which a record must be compacted.",
        "log.cleaner.max.compaction.lag.ms",
        minimum=1,
    )
    key("max.message.bytes", INT, 1_048_588, "Largest record batch.", "message.max.bytes", minimum=0)
    key(
        "message.timestamp.after.max.ms",
        LONG,
        3_600_000,
        "How far a record's timestamp may lie in the future.",
        "log.message.timestamp.after.max.ms",
        minimum=0,
    )
    key(
        "message.timestamp.before.max.ms",
        LONG,
        INT64_MAX,
        "How far a record's timestamp may lie in the past.",
        "log.message.timestamp.before.max.ms",
        minimum=0,
    )
    key(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whether records carry the client's timestamp or the append time.",
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    key(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        "Share of dirty bytes that starts compaction.",
        "log.cleaner.min.cleanable.ratio",
        minimum=0,
        maximum=1,
    )
    key(
        "min.compaction.lag.ms",
        LONG,
        0,
        "Least age of a record that is compacted.",
        "log.cleaner.min.compaction.lag.ms",
        minimum=0,
    )
    key(
        "min.insync.replicas", INT, 1, "In-sync replicas a write with acks=all needs.", "min.insync.replicas", minimum=1
    )
    key("retention.bytes", LONG, -1, "Most bytes a partition keeps. -1: no limit.", "log.retention.bytes")
    key("retention.ms", LONG, _WEEK_MS, "How long records are kept. -1: for ever.", "log.retention.ms", minimum=-1)
    key("segment.bytes", INT, 1 << 30, "Size at which a new segment is rolled.", "log.segment.bytes", minimum=1_048_576)
    key("segment.index.bytes", INT, 10_485_760, "Largest offset index.", "log.index.size.max.bytes", minimum=4)
    key("segment.jitter.ms", LONG, 0, "Largest random reduction of segment.ms.", "log.roll.jitter.ms", minimum=0)
    key("segment.ms", LONG, _WEEK_MS, "Age at which a new segment is rolled.", "log.roll.ms", minimum=1)
    key("internal.segment.bytes", INT, None, "segment.bytes without its lower bound, for tests.", internal=True)
    key(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether an out-of-sync replica may become leader.",
        "unclean.leader.election.enable",
    )
    # Kafka lists these for every topic, and tools that show a topic expect them.
    key(
        "preallocate",
        BOOLEAN,
        False,
        "Accepted without effect.",
        "log.preallocate",
        effect=False,
    )
    key("remote.storage.enable", BOOLEAN, False, "Tiered storage; true is refused.", effect=False)
    key("remote.log.copy.disable", BOOLEAN, False, "Tiered storage: accepted without effect.", effect=False)
    key("remote.log.delete.on.disable", BOOLEAN, False, "Tiered storage: accepted without effect.", effect=False)
    key(
        "local.retention.ms",
        LONG,
        -2,
        "Tiered storage: accepted without effect.",
        "log.local.retention.ms",
        minimum=-2,
        effect=False,
    )
    key(
        "local.retention.bytes",
        LONG,
        -2,
        "Tiered storage: accepted without effect.",
        "log.local.retention.bytes",
        minimum=-2,
        effect=False,
    )
    key(
        "leader.replication.throttled.replicas",
        LIST,
        (),
        "Accepted without effect; replication is not throttled.",
        effect=False,
    )
    key(
        "follower.replication.throttled.replicas",
        LIST,
        (),
        "Accepted without effect; replication is not throttled.",
        effect=False,
    )
    return keys


BROKER_KEYS: Mapping[str, ConfigKey] = _broker_keys()
TOPIC_KEYS: Mapping[str, ConfigKey] = _topic_keys()
