"""Classes of differences from Apache Kafka that the run in lockstep finds and that stay, each with its reason.

A pattern is matched against the whole of "API path: Kafka's | ours", or of that with what is odd about the request in
parentheses (`lockstep_requests.oddities`). What matches none fails the run.
"""

from __future__ import annotations

import re

KNOWN: tuple[tuple[str, str], ...] = (
    (r"\w+ \S*error_message: (None|'') \| '.*", "ours says why where Kafka says nothing"),
    (r"\w+ \S*error_message: '.*' \| (None|'')", "a text that Kafka adds to a code that says it all"),
    (r"(Create|Alter|IncrementalAlter|Describe)(Topics|Configs) \S*error_message: '.*' \| '.*",
     "the first of several mistakes, in the order of Java's hash maps, or with a suggestion"),
    ((r"(UpdateFeatures|AlterPartitionReassignments|DescribeClientQuotas|DescribeCluster|CreatePartitions|ElectLeaders|"
     r"DescribeAcls|DescribeTopicPartitions) \S*error_message: '.*' \| '.*"), "the same in other words"),
    (r"ConsumerGroupHeartbeat error_message: 'SubscribedTopicRegex .*", "RE2's words for a mistake in an expression"),
    (r"ApiVersions (api_keys|supported_features|finalized_features)#: .*",
     "share and streams groups, delegation tokens, telemetry and others are not served"),
    (r"UpdateFeatures error_code: NONE \| INVALID_UPDATE_VERSION",
     "share.version, streams.version, kraft.version and eligible.leader.replicas.version are not features here"),
    (r"DescribeQuorum (topics.partitions.(high_watermark|leader_epoch)|nodes.listeners#): .*",
     "the controller is one node of this broker's own, without a Raft log or a listener"),
    (r"(Describe|Create|Delete)Acls outcome: closed \| answer", "Kafka closes the connection for an unknown enum"),
    (r"\w+ outcome: (silence|closed) \| answer", "Kafka gives no answer to nonsense; ours refuses it"),
    (r"\w+ \S*error_code: UNKNOWN_SERVER_ERROR \| (?!NONE)\w+", "Kafka fails with an exception; ours has a code"),
    (r"Fetch error_code: UNKNOWN_SERVER_ERROR \| NONE \((.*, )?zero id\)",
     "a NullPointerException in Kafka (FetchResponse.matchingTopic) where a partition follows one of the zero id"),
    (r"Fetch error_code: UNKNOWN_SERVER_ERROR \| NONE",
     "a session id near the borders of int32, for which Kafka's cache has no shard (IndexOutOfBoundsException)"),
    (r"DescribeGroups groups.error_code: NONE \| GROUP_ID_NOT_FOUND",
     "a group of which every offset was refused is shown by Kafka after its next write (docs/reference/served.md)"),
    (r"IncrementalAlterConfigs responses.error_code: UNKNOWN_SERVER_ERROR \| NONE",
     "an operation that is none fails all of Kafka's request, here its resource"),
    (r"WriteTxnMarkers markers(\S*#: \d+ \| \d+|.producer_id: .*)", "Kafka leaves out a marker without partitions"),
    (r"Metadata topics.error_code: UNKNOWN_TOPIC_OR_PARTITION \| NONE",
     "a topic made by the request is told of at once; Kafka says not yet"),
    ((r"(Produce|ListOffsets|DeleteRecords|TxnOffsetCommit|AddPartitionsToTxn|Fetch|Metadata|OffsetCommit|OffsetDelete|"
     r"ElectLeaders|DescribeLogDirs|OffsetForLeaderEpoch|DescribeProducers|DescribeTopicPartitions|DescribeGroups|"
     r"ListTransactions) \S*#: \d+ \| \d+ \((.*, )?(empty|twice)(, .*)?\)"),
     "a topic named without partitions, or the same thing twice: Kafka keeps some lists as sets"),
    (r"AddPartitionsToTxn results_by_transaction\.\S+: .* \((.*, )?twice\)", "a transactional id twice, told once"),
    (r"JoinGroup protocol_name: .* \((.*, )?twice\)", "a protocol named twice has two votes"),
    (r"Produce \S*error_code: CORRUPT_MESSAGE \| .*", "Kafka parses the records before it looks at the topic"),
    (r"DescribeConfigs results.configs#: \d+ \| \d+", "this broker's own settings are listed too"),
    (r"DescribeConfigs results.configs.(config_source|value|synonyms#|read_only).*",
     "settings of the broker's start: ports, directories, and defaults that say why they differ (settings.md)"),
    (r"(Alter|IncrementalAlter)Configs responses.error_code: INVALID_CONFIG \| (NONE|UNKNOWN_TOPIC_OR_PARTITION)",
     "min.insync.replicas of a broker (ELR), and values of settings without effect"),
    (r"(Alter|IncrementalAlter)Configs responses.error_code: INVALID_REQUEST \| NONE",
     "more than twice as many threads as before, in settings without effect (DynamicThreadPool)"),
    (r"(Alter|IncrementalAlter)Configs responses.resource_type: .*", "one resource twice"),
    (r"(CreateTopics|DescribeConfigs) .*config_source: 3 \| 5", "min.insync.replicas is no cluster default (ELR)"),
    (r"(OffsetForLeaderEpoch|ListOffsets) \S*(end_offset|offset|timestamp): \d+ \| \d+",
     "offsets and times in internal topics, whose records are written at other times"),
    (r"JoinGroup outcome: silence \| answer", "a protocol named twice: Kafka fails and does not answer"),
    ((r"(JoinGroup (generation_id: \d \| \d|outcome: answer \| silence|error_code: UNKNOWN_MEMBER_ID \| NONE)|"
     r"DeleteGroups results.error_code: NON_EMPTY_GROUP \| NONE)"), "a short timeout, met at another time"),
    ((r"Produce \S*(error_code: (?!NONE)\w+ \| INVALID_RE\w+|"
     r"error_code: NONE \| INVALID_PRODUCER_ID_MAPPING|error_code: INVALID_REQUIRED_ACKS \| (?!NONE)\w+|"
     r"error_message: '.*' \| '.*')"),
     "several mistakes in one request: another one is told"),
    (r"Fetch responses.partitions.error_code: UNKNOWN_LEADER_EPOCH \| NOT_LEADER_OR_FOLLOWER", "no such replica"),
    (r"DescribeTopicPartitions next_cursor.topic_name: 't\w+' \| 't\w+'", "all topics, others of which are there"),
    (r"AlterPartitionReassignments allow_replication_factor_change: .*", "told, and of no consequence"),
    (r"(Metadata|Produce) \S*error_code: (?!NONE)\w+ \| (INVALID_TOPIC_EXCEPTION|UNKNOWN_TOPIC_OR_PARTITION)",
     "of several topics another one comes first"),
    ((r"(DeleteTopics responses.name: .*|IncrementalAlterConfigs responses."
     r"(resource_name: .*|error_code: (?!NONE)\w+ \| (?!NONE)\w+))"),
     "a topic or a resource named twice, or another of two mistakes"),
    (r"OffsetCommit topics.partitions.error_code: UNKNOWN_TOPIC_OR_PARTITION \| GROUP_ID_NOT_FOUND",
     "of two mistakes the other one"),
    (r"Fetch responses.partitions.(records|high_watermark|last_stable_offset): .*", "internal topics, as above"),
)  # fmt: skip

_PATTERNS = tuple((re.compile(pattern, re.DOTALL), reason) for pattern, reason in KNOWN)


def reason_for(class_: str) -> str | None:
    """Why a class of differences stays; None for one that is not listed."""
    plain = re.sub(r" \([a-z, ]+\)$", "", class_)
    return next(
        (reason for pattern, reason in _PATTERNS if pattern.fullmatch(class_) or pattern.fullmatch(plain)), None
    )
