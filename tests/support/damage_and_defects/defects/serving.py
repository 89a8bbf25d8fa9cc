"""Defects of the request handlers: produce, fetch, list offsets, metadata, topics, framing."""

from __future__ import annotations

from typing import Final

from defects.defect import BODY, Defect

_PRODUCE: Final = "minibroker.handlers.produce:"
_FETCH: Final = "minibroker.handlers.fetch:"
_FETCH_LOG: Final = "minibroker.handlers.fetch_log:"
_FETCH_TARGETS: Final = "minibroker.handlers.fetch_targets:"
_SESSIONS: Final = "minibroker.broker.fetch_sessions:"
_LIST: Final = "minibroker.handlers.list_offsets:"
_TOPICS: Final = "minibroker.controller.topics:"

SERVING: Final = (
    # -- Produce -------------------------------------------------------------------------------------------------------
    Defect(
        "transactional-batch-without-id",
        "a transactional batch needs a transactional id in its request",
        _PRODUCE + "_produce",
        "if request.transactional_id is None:",
        "if False:",
    ),
    Defect(
        "write-to-internal-topic",
        "clients cannot write to internal topics",
        _PRODUCE + "_entries",
        "if name in INTERNAL_TOPICS and not internal_allowed:",
        "if False:",
    ),
    Defect(
        "any-acks",
        "acks is -1, 0 or 1",
        _PRODUCE + "_append_all",
        "if not -1 <= acks <= 1:",
        "if False:",
    ),
    Defect(
        "silent-refusal-without-acks",
        "a refused Produce with acks=0 closes the connection",
        _PRODUCE + "_respond_nothing",
        'raise CloseConnection(f"Produce with acks=0 to {entry.topic}-{entry.index} refused: {entry.error.code.name}")',
        "return None",
    ),
    Defect(
        "answer-without-acks",
        "Produce with acks=0 has no answer",
        _PRODUCE + "_respond",
        "if request.acks == 0:",
        "if False:",
    ),
    Defect(
        "several-producers-in-a-request",
        "transactional batches of a request are of one producer id",
        _PRODUCE + "_Verification.end",
        "if len(self.producers) > 1:",
        "if False:",
    ),
    Defect(
        "no-implicit-add",
        "Produce v12 adds its partitions to the transaction",
        _PRODUCE + "_Verification.end",
        "ctx.broker.coordinators.verifier.verify(request.transactional_id, producer_id, self.epoch, "
        "[(entry.topic, entry.index) for entry in self.unverified], api_version=ctx.api_version)",
        "ctx.broker.coordinators.verifier.verify(request.transactional_id, producer_id, self.epoch, "
        "[(entry.topic, entry.index) for entry in self.unverified], api_version=11)",
    ),
    Defect(
        "no-log-start-in-refusals",
        "a refusal that came from the log carries the log start offset",
        _PRODUCE + "_log_start",
        "return -1 if partition is None else partition.log.log_start_offset",
        "return -1",
    ),
    # -- Fetch ---------------------------------------------------------------------------------------------------------
    Defect(
        "read-committed-reads-everything",
        "a read_committed reader gets nothing from the last stable offset on",
        _FETCH_LOG + "_readable_end",
        "return log.last_stable_offset if fetch.isolation == READ_COMMITTED else log.high_watermark",
        "return log.high_watermark",
    ),
    Defect(
        "read-uncommitted-waits",
        "a read_uncommitted reader sees open transactions",
        _FETCH_LOG + "_readable_end",
        "return log.last_stable_offset if fetch.isolation == READ_COMMITTED else log.high_watermark",
        "return log.last_stable_offset",
    ),
    Defect(
        "no-aborted-transactions",
        "a read_committed reader gets the list of aborted transactions",
        _FETCH_LOG + "_read_log",
        "[FetchResponse.AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset) for a"
        " in log.aborted_transactions(chunk)]",
        "[]",
    ),
    Defect(
        "aborted-transactions-to-everyone",
        "only read_committed readers get the list of aborted transactions",
        _FETCH_LOG + "_read_log",
        "if fetch.isolation == READ_COMMITTED:",
        "if True:",
    ),
    Defect(
        "fetch-tells-high-watermark-as-lso",
        "a fetch answer tells the last stable offset",
        _FETCH_LOG + "_read_log",
        "last_stable_offset=log.last_stable_offset,",
        "last_stable_offset=log.high_watermark,",
    ),
    Defect(
        "fetch-without-log-start",
        "a fetch answer tells the log start offset",
        _FETCH_LOG + "_read_log",
        "log_start_offset=log.log_start_offset,",
        "log_start_offset=-1,",
    ),
    Defect(
        "no-divergence-check",
        "a reader whose last epoch ended earlier in this log gets its end offset",
        _FETCH_LOG + "_read_log",
        "follower_fetch.diverging(partition, target)",
        "None",
    ),
    Defect(
        "any-leader-epoch",
        "a client with another leader epoch is refused",
        "minibroker.partitions.partition:Partition.check_leader_epoch",
        BODY,
        "return None",
    ),
    Defect(
        "fetch-never-waits",
        "a fetch waits for min_bytes up to max_wait_ms",
        _FETCH_LOG + "is_enough",
        "if request.max_wait_ms <= 0 or not (reads or fetch.idle):",
        "if True:",
    ),
    Defect(
        "fetch-ignores-max-bytes",
        "the byte limit is for all partitions of a fetch together",
        _FETCH_LOG + "read_some",
        "fetch.remaining = max(0, remaining - read.size)",
        "pass",
    ),
    Defect(
        "fetch-repeats-old-news",
        "an incremental fetch answer names only partitions with news",
        _FETCH_TARGETS + "_open_session",
        "fetch.full = False",
        "pass",
    ),
    Defect(
        "fetch-withholds-news",
        "an incremental fetch answer tells of a new high watermark",
        _FETCH + "_is_news",
        "data.high_watermark != target.known_high_watermark",
        "False",
    ),
    Defect(
        "any-session-epoch",
        "an incremental fetch needs the session's next epoch",
        _SESSIONS + "FetchSessionCache.resume",
        "if session.epoch != epoch:",
        "if False:",
    ),
    Defect(
        "session-mixes-names-and-ids",
        "a session cannot change between topic names and ids",
        _SESSIONS + "FetchSessionCache.resume",
        "if session.uses_topic_ids != uses_topic_ids:",
        "if False:",
    ),
    Defect(
        "session-forgets-nothing",
        "a partition that the client forgets leaves its session",
        _SESSIONS + "FetchSession.apply",
        "self.targets.pop(key, None)",
        "pass",
    ),
    Defect(
        "final-epoch-keeps-session",
        "a full fetch closes the session it names",
        _FETCH_TARGETS + "_open_session",
        "if request.session_id != INVALID_SESSION_ID:",
        "if False:",
    ),
    # -- ListOffsets and other questions about logs --------------------------------------------------------------------
    Defect(
        "latest-ignores-isolation",
        "the latest offset of read_committed is the last stable one",
        _LIST + "_offset",
        "elif request.isolation_level == READ_COMMITTED:",
        "elif False:",
    ),
    Defect(
        "list-offsets-twice",
        "a partition named twice is refused",
        _LIST + "_look_up",
        "if lookup.twice:",
        "if False:",
    ),
    Defect(
        "list-offsets-any-meaning",
        "a special timestamp needs the version that knows it",
        _LIST + "_check_version",
        "ctx.api_version < _SINCE_VERSION.get(timestamp, 0)",
        "False",
    ),
    Defect(
        "delete-records-of-internal-topic",
        "records of internal topics cannot be deleted",
        "minibroker.handlers.partitions:_delete_records",
        "if topic in INTERNAL_TOPICS:",
        "if False:",
    ),
    # -- metadata, topics, framing -------------------------------------------------------------------------------------
    Defect(
        "create-existing-topic",
        "a topic that exists is not made again",
        _TOPICS + "TopicControl._create_topic",
        "if topic.name in image.topics:",
        "if False:",
    ),
    Defect(
        "any-topic-name",
        "a topic name has only legal characters",
        _TOPICS + "check_topic_name",
        "if reason is not None:",
        "if False:",
    ),
    Defect(
        "topic-without-partitions",
        "a topic of no partitions is refused",
        _TOPICS + "TopicControl._assignment",
        "raise ApiError(ErrorCode.INVALID_PARTITIONS, "
        "'Number of partitions was set to an invalid non-positive value.')",
        "count = 1",
    ),
    Defect(
        "validate-only-creates",
        "a request to validate only creates nothing",
        _TOPICS + "TopicControl._create_topic",
        "if validate_only:",
        "if False:",
    ),
    Defect(
        "partitions-shrink",
        "a topic never gets fewer partitions",
        _TOPICS + "TopicControl._grown",
        "if topic.count < have:",
        "if False:",
    ),
    Defect(
        "create-topic-twice-in-a-request",
        "a topic named twice in a request is refused",
        _TOPICS + "TopicControl.creating",
        "{name: _NAMED_TWICE for name, count in counts.items() if count > 1}",
        "dict[str, str]()",
    ),
    Defect(
        "delete-topic-twice-in-a-request",
        "a topic named twice in DeleteTopics stays",
        _TOPICS + "TopicControl.delete_topics",
        "answer(name, NO_ID, ErrorCode.INVALID_REQUEST, _NAMED_TWICE)",
        "doomed.append(image.topics[name])",
    ),
    Defect(
        "delete-topic-by-name-and-id",
        "a topic named by its name and by its id in DeleteTopics stays",
        _TOPICS + "TopicControl.delete_topics",
        "elif topic.topic_id in ids:",
        "elif False:",
    ),
    Defect(
        "grow-topic-twice-in-a-request",
        "a topic named twice in CreatePartitions does not grow",
        _TOPICS + "TopicControl.create_partitions",
        "if counts[topic.name] > 1:",
        "if False:",
    ),
    Defect(
        "alter-resource-twice-in-a-request",
        "a resource named twice in IncrementalAlterConfigs stays as it is",
        "minibroker.controller.configs:_refusal",
        "if counts[resource.resource_type, resource.resource_name] > 1:",
        "if False:",
    ),
    Defect(
        "illegal-name-is-only-missing",
        "a topic whose name is illegal is not merely missing",
        "minibroker.handlers.metadata:_absent",
        "return error.code",
        "pass",
    ),
    Defect(
        "metadata-creates-topics",
        "Metadata makes a missing topic only when asked to",
        "minibroker.handlers.metadata:handle",
        "not request.allow_auto_topic_creation",
        "False",
    ),
    Defect(
        "missing-partition-is-led-elsewhere",
        "a partition that does not exist is unknown, not led by another broker",
        "minibroker.broker.broker:Broker._not_here",
        "if self.image.partition(topic, index) is None:",
        "if False:",
    ),
    Defect(
        "unsupported-api-versions-closes",
        "ApiVersions of an unknown version is answered with the broker's own range",
        "minibroker.requests.dispatch:Dispatcher.dispatch",
        "if api_key == API_VERSIONS_KEY:",
        "if False:",
    ),
    Defect(
        "first-coordinator-only",
        "FindCoordinator answers every key it is asked for",
        "minibroker.handlers.find_coordinator:_answer",
        "request.coordinator_keys",
        "request.coordinator_keys[:1]",
    ),
    Defect(
        "any-software-name",
        "ApiVersions checks the client's software name",
        "minibroker.handlers.api_versions:ApiVersions.handle",
        "if _SOFTWARE.fullmatch(name) is None or _VERSION.fullmatch(version) is None:",
        "if False:",
    ),
    Defect(
        "serve-any-version",
        "a version that is not served closes the connection",
        "minibroker.requests.dispatch:Dispatcher.dispatch",
        "if not api.min_version <= version <= api.max_version:",
        "if version < api.min_version:",
    ),
    Defect(
        "answer-unsupported-version",
        "a request of a version that is not served gets no answer",
        "minibroker.requests.dispatch:Dispatcher.dispatch",
        "if api_key == API_VERSIONS_KEY:",
        "if True:",
    ),
    Defect(
        "only-minus-one-is-null",
        "every length below 0 is null where null may be",
        "minibroker_protocol.codegen_read:_Reader.null",
        'f"if n < 0: {target} = None"',
        'f"if n == -1: {target} = None"',
    ),
    Defect(
        "silent-on-unknown-api",
        "a request of an API there is not closes its connection",
        "minibroker.requests.dispatch:Dispatcher.dispatch",
        "raise CloseConnection(description(api_key))",
        "return None",
    ),
    Defect(
        "silent-on-broken-header",
        "a request whose header cannot be read closes its connection",
        "minibroker.requests.dispatch:Dispatcher.dispatch",
        "api_key, version, correlation_id, client_id, position = parse_request_header(frame)",
        "try:\n"
        "    api_key, version, correlation_id, client_id, position = parse_request_header(frame)\n"
        "except Malformed:\n"
        "    return None",
    ),
    Defect(
        "silent-on-broken-request",
        "a request that cannot be read closes its connection",
        "minibroker.requests.dispatch:Dispatcher.dispatch",
        "request = api.request.decode_within(_AT_ONCE_BYTES, frame, version, position)",
        "try:\n"
        "    request = api.request.decode_within(_AT_ONCE_BYTES, frame, version, position)\n"
        "except Malformed:\n"
        "    return None",
    ),
    Defect(
        "metadata-never-creates-topics",
        "Metadata makes a missing topic when asked to",
        "minibroker.handlers.metadata:handle",
        "not request.allow_auto_topic_creation",
        "True",
    ),
    Defect(
        "produce-without-log-start",
        "Produce answers the log start offset",
        _PRODUCE + "_respond",
        "log_start_offset=info.log_start_offset,",
        "log_start_offset=-1,",
    ),
    Defect(
        "answers-out-of-order",
        "a request waits until the one before it on its connection was answered",
        "minibroker.server.connection:Connection._serve",
        "self._blocked |= PARKED",
        "self._blocked |= 0",
    ),
    Defect(
        "offset-fetch-forgets-old-form",
        "OffsetFetch tells the committed offset in its form for one group too",
        "minibroker.handlers.offsets:_OffsetFetch._fill",
        "committed_offset=offset.offset,",
        "committed_offset=-1 if self._form is _ONE_GROUP else offset.offset,",
    ),
    Defect(
        "coordinator-apis-not-listed",
        "ApiVersions lists every API that is served",
        "minibroker.handlers.api_versions:ApiVersions.describe",
        "api.advertised or unlisted",
        "(api.advertised or unlisted) and key != 28",
    ),
    Defect(
        "any-cluster-id",
        "ApiVersions v5 that is meant for another cluster or broker is refused",
        "minibroker.handlers.api_versions:_meant_for",
        "return ErrorCode.REBOOTSTRAP_REQUIRED",
        "return ErrorCode.NONE",
    ),
    Defect(
        "cluster-id-alone",
        "ApiVersions v5 names cluster and broker, or neither",
        "minibroker.handlers.api_versions:_meant_for",
        "if (cluster_id is None) != (node_id == _NO_NODE):",
        "if False:",
    ),
    Defect(
        "offset-commit-topics-twice",
        "each topic is once in the answer of an offset commit",
        "minibroker.handlers.offset_commits:OffsetCommitting._add",
        "partitions = self._entries.get(key)",
        "partitions = None",
    ),
    Defect(
        "txn-offsets-without-epoch-codes",
        "TxnOffsetCommit v6 has the codes about member epochs",
        "minibroker.coordinators.groups.commits:Commit.knows_epochs",
        "TXN_OFFSET_COMMIT_WITH_EPOCHS",
        "99",
    ),
    Defect(
        "delete-groups-says-why",
        "DeleteGroups has no message for a group that is missing or not empty",
        "minibroker.handlers.group_admin:_deleted",
        "error_code=error.code",
        "error_code=error.code, error_message=error.code.name",
    ),
    Defect(
        "decompressed-records-of-any-size",
        "max.decompressed.message.bytes limits each record of a compressed batch",
        "minibroker_storage.validator:_check_records",
        "if long is not None:",
        "if False:",
    ),
    Defect(
        "setting-not-shown",
        "DescribeConfigs shows every setting of a topic that the release has",
        "minibroker.config.settings:Settings.describe_topic",
        "name not in self.absent",
        "name != 'max.decompressed.message.bytes'",
    ),
    Defect(
        "any-logger-operation",
        "loggers are set and deleted, nothing else",
        "minibroker.controller.configs:_check_logger_change",
        "if operation not in (AlterConfigOpType.SET, AlterConfigOpType.DELETE):",
        "if False:",
    ),
)
