"""Defects of the request handlers: produce, fetch, list offsets, metadata, topics, framing."""

from __future__ import annotations

from typing import Final

from minibroker.defects.defect import Defect

_PRODUCE: Final = "minibroker.handlers.produce:"
_FETCH: Final = "minibroker.handlers.fetch:"
_SESSIONS: Final = "minibroker.cluster.fetch_sessions:"
_LIST: Final = "minibroker.handlers.list_offsets:"
_TOPICS: Final = "minibroker.controller.topics:"

SERVING: Final = (
    # -- Produce -------------------------------------------------------------------------------------------------------
    Defect(
        "transactional-batch-without-id",
        "a transactional batch needs a transactional id in its request",
        _PRODUCE + "handle",
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
        _PRODUCE + "_respond",
        "if entry.error is not None:\n                # The client",
        "if False:\n                # The client",
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
        _PRODUCE + "_verify",
        "if len(producers) > 1:",
        "if False:",
    ),
    Defect(
        "no-implicit-add",
        "Produce v12 adds its partitions to the transaction",
        _PRODUCE + "_verify",
        "api_version=ctx.api_version,",
        "api_version=11,",
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
        _FETCH + "_bound",
        "return log.last_stable_offset if fetch.isolation == READ_COMMITTED else log.high_watermark",
        "return log.high_watermark",
    ),
    Defect(
        "read-uncommitted-waits",
        "a read_uncommitted reader sees open transactions",
        _FETCH + "_bound",
        "return log.last_stable_offset if fetch.isolation == READ_COMMITTED else log.high_watermark",
        "return log.last_stable_offset",
    ),
    Defect(
        "no-aborted-transactions",
        "a read_committed reader is told which transactions were aborted",
        _FETCH + "_read_log",
        "if fetch.isolation == READ_COMMITTED and not fetch.follower:\n        data.aborted",
        "if False:\n        data.aborted",
    ),
    Defect(
        "aborted-transactions-to-everyone",
        "only read_committed readers get the list of aborted transactions",
        _FETCH + "_read_log",
        "aborted_transactions=[] if fetch.isolation == READ_COMMITTED and not fetch.follower else None,",
        "aborted_transactions=[],",
    ),
    Defect(
        "fetch-tells-high-watermark-as-lso",
        "a fetch answer tells the last stable offset",
        _FETCH + "_read_log",
        "last_stable_offset=log.last_stable_offset,",
        "last_stable_offset=log.high_watermark,",
    ),
    Defect(
        "no-divergence-check",
        "a reader whose last epoch ended earlier here is told where",
        _FETCH + "_read_log",
        "if target.last_fetched_epoch >= 0 and _diverges(partition, target, data):",
        "if False:",
    ),
    Defect(
        "any-leader-epoch",
        "a client with another leader epoch is refused",
        "minibroker.cluster.partition:Partition.check_leader_epoch",
        "if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:",
        "if True:",
    ),
    Defect(
        "fetch-never-waits",
        "a fetch waits for min_bytes up to max_wait_ms",
        _FETCH + "_complete",
        "if request.max_wait_ms <= 0 or not reads:",
        "if True:",
    ),
    Defect(
        "fetch-ignores-max-bytes",
        "the byte limit is for all partitions of a fetch together",
        _FETCH + "_read_all",
        "remaining = max(0, remaining - read.size)",
        "pass",
    ),
    Defect(
        "fetch-repeats-old-news",
        "an incremental fetch answer names only partitions with news",
        _FETCH + "_is_news",
        "        fetch.full\n",
        "        True\n",
    ),
    Defect(
        "fetch-withholds-news",
        "an incremental fetch answer tells of a new high watermark",
        _FETCH + "_is_news",
        "or data.high_watermark != target.known_high_watermark\n",
        "",
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
        _FETCH + "_open_session",
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
        _LIST + "handle",
        "if (topic.name, wanted.partition_index) in twice:",
        "if False:",
    ),
    Defect(
        "list-offsets-any-meaning",
        "a special timestamp needs the version that knows it",
        _LIST + "_offset",
        "if ctx.api_version < _SINCE_VERSION.get(timestamp, 0) or",
        "if False or",
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
        "validate-only-creates",
        "a request to validate only creates nothing",
        _TOPICS + "TopicControl._create_topic",
        "if not validate_only:",
        "if True:",
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
        _TOPICS + "TopicControl.create_topics",
        "if counts[topic.name] > 1:",
        "if False:",
    ),
    Defect(
        "metadata-creates-topics",
        "Metadata makes a missing topic only when asked to",
        "minibroker.handlers.metadata:handle",
        "allowed = ctx.api_version < 4 or request.allow_auto_topic_creation",
        "allowed = True",
    ),
    Defect(
        "unsupported-api-versions-closes",
        "ApiVersions of an unknown version is answered with the broker's own range",
        "minibroker.handlers.dispatch:Dispatcher.dispatch",
        "if api_key == API_VERSIONS_KEY:",
        "if False:",
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
        "minibroker.handlers.dispatch:Dispatcher._serves",
        "if not api.min_version <= version <= api.max_version:",
        "if version < api.min_version:",
    ),
    Defect(
        "answer-unsupported-version",
        "a request of a version that is not served gets no answer",
        "minibroker.handlers.dispatch:Dispatcher.dispatch",
        "if api_key == API_VERSIONS_KEY:",
        "if True:",
    ),
    Defect(
        "silent-on-broken-request",
        "a request that cannot be read closes its connection",
        "minibroker.handlers.dispatch:Dispatcher.dispatch",
        "position)\n        except Malformed as error:\n            raise CloseConnection(str(error)) from None",
        "position)\n        except Malformed:\n            return None",
    ),
    Defect(
        "metadata-never-creates-topics",
        "Metadata makes a missing topic when asked to",
        "minibroker.handlers.metadata:handle",
        "allowed = ctx.api_version < 4 or request.allow_auto_topic_creation",
        "allowed = False",
    ),
    Defect(
        "produce-without-log-start",
        "Produce answers the log start offset",
        _PRODUCE + "_respond",
        "log_start_offset=info.log_start_offset,",
        "log_start_offset=-1,",
    ),
    Defect(
        "coordinator-apis-not-listed",
        "ApiVersions lists every API that is served",
        "minibroker.handlers.api_versions:ApiVersions.describe",
        "if api.advertised or unlisted",
        "if (api.advertised or unlisted) and key != 28",
    ),
)
