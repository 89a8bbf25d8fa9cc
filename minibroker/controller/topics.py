"""CreateTopics, DeleteTopics, CreatePartitions on the controller (Kafka's ReplicationControlManager).

Each topic of a request succeeds or fails on its own, with its own code and message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from minibroker.config.settings import validate_topic_config
from minibroker.controller.state import ControllerState, Steps, in_steps, without_steps
from minibroker.metadata.image import BrokerImage, TopicImage
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID

MAX_NAME_LENGTH = 249
_Lists = list[tuple[int, ...]]
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_NAMED_TWICE = "Duplicate topic name."
_METADATA_LOG = "__cluster_metadata"
_Created = m.CreateTopicsResponse.CreatableTopicResult
_NOT_HOSTED = "This server does not host this topic-partition."
MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka's ReplicationControlManager.MAX_PARTITIONS_PER_BATCH."""
MAX_RECORDS_PER_REQUEST = 10_000
"""Kafka's QuorumController.MAX_RECORDS_PER_USER_OP: one for each topic, each of its configs and each partition."""


def check_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION for a name Kafka refuses (org.apache.kafka.common.internals.Topic)."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif _LEGAL_NAME.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def check_replica_list(replicas: Sequence[int], brokers: Container[int]) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT for a partition's replica list that is empty, or names a broker twice or one
    that is not registered."""
    reason = None
    if not replicas:
        reason = "The manual partition assignment includes an empty replica list."
    elif len(set(replicas)) != len(replicas):
        twice = next(node for node in replicas if replicas.count(node) > 1)
        reason = f"The manual partition assignment includes the broker {twice} more than once."
    else:
        strangers = [node for node in replicas if node not in brokers]
        if strangers:
            reason = (
                f"The manual partition assignment includes broker {strangers[0]}, but no such broker is registered."
            )
    if reason is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _checked(index: int, replicas: tuple[int, ...], factor: int, brokers: Mapping[int, BrokerImage]) -> tuple[int, ...]:
    """As ReplicationControlManager.validateManualPartitionAssignment, with its texts."""
    check_replica_list(replicas, brokers)
    if len(replicas) != factor:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s).",
        )
    if not any(brokers[node].active for node in replicas):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown.",
        )
    return replicas


class TopicControl:
    """Topic requests against one `ControllerState`."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self._next_broker = 0

    # -- create ------------------------------------------------------------------------------------------------------

    def create_topics(self, request: m.CreateTopicsRequest) -> m.CreateTopicsResponse:
        """All topics at once; `creating` goes from one to the next."""
        return without_steps(self.creating(request))

    def creating(self, request: m.CreateTopicsRequest) -> Steps[m.CreateTopicsResponse]:
        """Each topic is a change by itself."""
        # What ControllerApis.createTopics refuses is answered last: the metadata log, and a duplicate name, once.
        counts = Counter(topic.name for topic in request.topics)
        refused = {name: _NAMED_TWICE for name, count in counts.items() if count > 1}
        if _METADATA_LOG in counts:
            refused.setdefault(_METADATA_LOG, f"Creation of internal topic {_METADATA_LOG} is prohibited.")
        results = []
        excess = yield from self._excess(request)
        # Topics of one request do not collide with each other (ReplicationControlManager.validateNewTopicNames).
        named = yield from in_steps((t.name, (t, self._state.collides_with(t.name))) for t in request.topics)
        for topic, other in sorted(dict(named).values(), key=lambda pair: pair[0].name in refused):
            yield None
            try:
                if topic.name in refused:
                    raise ApiError(ErrorCode.INVALID_REQUEST, refused[topic.name])
                if excess is not None:
                    raise ApiError(ErrorCode.POLICY_VIOLATION, excess)
                results.append((yield from self._create_topic(topic, other, validate_only=request.validate_only)))
            except ApiError as error:
                results.append(_Created(name=topic.name, error_code=error.code, error_message=error.message))
        return m.CreateTopicsResponse(topics=results)

    def _excess(self, request: m.CreateTopicsRequest) -> Steps[str | None]:
        """Why none of the topics is created (as a live Kafka 4.4.0 answers): there are too many, or too many
        partitions."""
        sizes = yield from in_steps((self._count(topic), topic) for topic in request.topics)
        if sum(count for count, _ in sizes) > MAX_PARTITIONS_PER_REQUEST:
            return "Excessively large number of partitions per request."
        topics = self._state.image.topics
        new = [(count, topic) for count, topic in sizes if count > 0 and topic.name not in topics]
        if sum(1 + count + len(topic.configs) for count, topic in new) > MAX_RECORDS_PER_REQUEST:
            return "Unable to perform excessively large batch operation."
        return None

    def _count(self, topic: m.CreateTopicsRequest.CreatableTopic) -> int:
        """The requested number of partitions; 0 for an invalid number."""
        if topic.assignments:
            return len(topic.assignments)
        count = topic.num_partitions
        return self._state.settings.get_int("num.partitions") if count == -1 else max(0, count)

    def _create_topic(
        self, topic: m.CreateTopicsRequest.CreatableTopic, other: str | None, *, validate_only: bool
    ) -> Steps[_Created]:
        check_topic_name(topic.name)
        image = self._state.image
        if topic.name in image.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        if other is not None:
            message = f"Topic '{topic.name}' collides with existing topic: {other}"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        configs = {c.name: c.value for c in topic.configs}
        overrides = {name: value for name, value in configs.items() if value is not None}
        validate_topic_config(configs, self._state.settings)
        assignment = yield from self._assignment(topic)
        if validate_only:
            topic_id = self._state.new_topic_id()  # Kafka answers with one that it gives to nothing
        else:
            topic_id = (yield from self._state.add_topic(topic.name, assignment, overrides)).topic_id
        return _Created(
            name=topic.name,
            topic_id=topic_id,
            error_code=ErrorCode.NONE,
            num_partitions=len(assignment),
            replication_factor=len(assignment[0]),
            configs=self._described(overrides),
        )

    def _described(self, overrides: Mapping[str, str]) -> list[m.CreateTopicsResponse.CreatableTopicConfigs]:
        return [
            m.CreateTopicsResponse.CreatableTopicConfigs(
                name=c.name, value=overrides.get(c.name, c.value), read_only=c.read_only, config_source=c.source
            )
            for c in sorted(self._state.settings.describe_topic(overrides))
        ]

    def _assignment(self, topic: m.CreateTopicsRequest.CreatableTopic) -> Steps[_Lists]:
        if topic.assignments:
            if topic.replication_factor != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "A manual partition assignment was specified, but replication factor was not set to -1.",
                )
            if topic.num_partitions != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "A manual partition assignment was specified, but numPartitions was not set to -1.",
                )
            by_index = dict((yield from in_steps((a.partition_index, tuple(a.broker_ids)) for a in topic.assignments)))
            if sorted(by_index) != list(range(len(topic.assignments))):
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
                )
            return (yield from self._check_manual([by_index[i] for i in range(len(by_index))]))
        count = topic.num_partitions
        if count == -1:
            count = self._state.settings.get_int("num.partitions")
        if count < 1:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        factor = topic.replication_factor
        if factor == -1:
            factor = self._state.settings.get_int("default.replication.factor")
        if factor < 1:
            raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1.")
        try:
            return (yield from self._place(count, factor))
        except ApiError as error:
            raise ApiError(error.code, f"Unable to replicate the partition {factor} time(s): {error.message}") from None

    def _check_manual(self, lists: _Lists, first: int = 0, factor: int | None = None) -> Steps[_Lists]:
        """Of partitions from index `first` on; `factor` is the number of replicas of those before."""
        size, brokers = len(lists[0]) if factor is None else factor, self._state.image.brokers
        return (yield from in_steps(_checked(i, replicas, size, brokers) for i, replicas in enumerate(lists, first)))

    def _place(self, count: int, factor: int) -> Steps[_Lists]:
        """Leaders go round the active brokers, each topic beginning one broker further, followers on the next ones and
        then, so that a topic can be made while a broker is down, on fenced ones (StripedReplicaPlacer)."""
        active = sorted(node for node, broker in self._state.image.brokers.items() if broker.active)
        fenced = sorted(node for node, broker in self._state.image.brokers.items() if broker.fenced)
        reason = ""
        if not active:
            reason = "All brokers are currently fenced, or have"
        elif factor > len(active) + len(fenced):
            reason = (
                f"The target replication factor of {factor} cannot be reached because only "
                f"{len(active) + len(fenced)} broker(s) are registered or some brokers have"
            )
        if reason:
            raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{reason} all their log directories cordoned.")
        start, self._next_broker = self._next_broker, self._next_broker + 1
        first = ((start + index) % len(active) for index in range(count))
        return (yield from in_steps((*active[at:], *active[:at], *fenced)[:factor] for at in first))

    # -- delete and grow ---------------------------------------------------------------------------------------------

    def delete_topics(self, request: m.DeleteTopicsRequest) -> Steps[m.DeleteTopicsResponse]:
        """A duplicate, by name, by id or by both, is answered once and not deleted (ControllerApis.deleteTopics)."""
        results: list[m.DeleteTopicsResponse.DeletableTopicResult] = []

        def answer(name: str | None, topic_id: bytes, code: ErrorCode, message: str | None = None) -> None:
            results.append(
                m.DeleteTopicsResponse.DeletableTopicResult(
                    name=name, topic_id=topic_id, error_code=code, error_message=message
                )
            )

        names, ids = Counter(request.topic_names), Counter[bytes]()
        for state in request.topics:
            yield None
            if state.name is not None and state.topic_id != NO_ID:
                message = "You may not specify both topic name and topic id."
                answer(state.name, state.topic_id, ErrorCode.INVALID_REQUEST, message)
            elif state.name is not None:
                names[state.name] += 1
            elif state.topic_id != NO_ID:
                ids[state.topic_id] += 1
            else:
                message = "Neither topic name nor id were specified."
                answer(None, NO_ID, ErrorCode.INVALID_REQUEST, message)
        doomed: list[TopicImage] = []
        claimed: set[bytes] = set()
        for name, count in names.items():
            yield None
            topic = self._state.image.topics.get(name)
            if count > 1:
                answer(name, NO_ID, ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
            elif topic is None:
                answer(name, NO_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
            elif topic.topic_id in ids:
                claimed.add(topic.topic_id)
                message = "The provided topic name maps to an ID that was already supplied."
                answer(name, topic.topic_id, ErrorCode.INVALID_REQUEST, message)
            else:
                doomed.append(topic)
        for topic_id, count in ids.items():
            yield None
            topic = self._state.image.topic_by_id(topic_id)
            if count > 1:
                answer(None, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
            elif topic is None:
                answer(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            elif topic_id not in claimed:
                doomed.append(topic)
        for topic in doomed:
            yield None
            if not self._state.settings.get_boolean("delete.topic.enable"):
                answer(topic.name, topic.topic_id, ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
                continue
            self._state.remove_topic(topic.name)
            answer(topic.name, topic.topic_id, ErrorCode.NONE)
        return m.DeleteTopicsResponse(responses=results)

    def create_partitions(self, request: m.CreatePartitionsRequest) -> Steps[m.CreatePartitionsResponse]:
        # A duplicate name is answered once (ControllerApis.createPartitions).
        counts = Counter(topic.name for topic in request.topics)
        results = []
        topics = self._state.image.topics
        added = sum(
            max(0, topic.count - len(topics[topic.name].partitions)) for topic in request.topics if topic.name in topics
        )
        for topic in {topic.name: topic for topic in request.topics}.values():
            yield None
            code, message = ErrorCode.NONE, None
            try:
                if counts[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
                if added > MAX_PARTITIONS_PER_REQUEST:
                    raise ApiError(
                        ErrorCode.POLICY_VIOLATION, "Excessively large number of additional partitions per request."
                    )
                replicas = yield from self._grown(topic)
                if not request.validate_only:
                    yield from self._state.add_partitions(topic.name, replicas)
            except ApiError as error:
                code, message = error.code, error.message
            results.append(
                m.CreatePartitionsResponse.CreatePartitionsTopicResult(
                    name=topic.name, error_code=code, error_message=message
                )
            )
        return m.CreatePartitionsResponse(results=results)

    def _grown(self, topic: m.CreatePartitionsRequest.CreatePartitionsTopic) -> Steps[_Lists]:
        image = self._state.image.topics.get(topic.name)
        if image is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
        have, factor = len(image.partitions), len(image.partitions[0].replicas)
        if topic.count == have:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
        if topic.count < have:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {have} partition(s); {topic.count} would not be an increase.",
            )
        if topic.assignments is not None:
            if len(topic.assignments) != topic.count - have:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {topic.count - have} additional partition(s), but only "
                    f"{len(topic.assignments)} assignment(s) were specified.",
                )
            lists = yield from in_steps(tuple(a.broker_ids) for a in topic.assignments)
            return (yield from self._check_manual(lists, have, factor))
        return (yield from self._place(topic.count - have, factor))
