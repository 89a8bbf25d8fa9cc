"""One broker: its partitions, its coordinators, and what a handler may ask of them (Kafka's BrokerServer)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, cast

from minibroker.broker import lost_data
from minibroker.broker.controller_channel import ControllerChannel, ask_controller
from minibroker.broker.fetch_sessions import FetchSessionCache
from minibroker.broker.lifecycle import BrokerLifecycleManager
from minibroker.broker.log_maintenance import LogMaintenance
from minibroker.broker.replication import Replication
from minibroker.config.settings import Settings
from minibroker.coordinator_runtime.coordinators import Coordinators
from minibroker.coordinators.hashing import partition_for
from minibroker.coordinators.producer_ids import ProducerIdBlocks
from minibroker.kernel.clock import ClockTimers, Timers
from minibroker.kernel.deferred import Deferred, spawn
from minibroker.kernel.executor import Executor
from minibroker.kernel.logs import get_logger
from minibroker.kernel.refusals import Refusals
from minibroker.kernel.transport import Transport
from minibroker.kernel.turns import STEP, InOrder, Lane, at_once
from minibroker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minibroker.metadata.internal_topics import creatable
from minibroker.partitions.log_flush import LogFlush
from minibroker.partitions.partition import Partition
from minibroker.partitions.refused_appends import RefusedAppends
from minibroker.security.create_authorizer import create_authorizer
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.inter_broker import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import StorageError
from minibroker_storage.log import PartitionLog
from minibroker_storage.producer_rules import ProducerRules

if TYPE_CHECKING:
    from minibroker.broker.connection import ConnectionInfo
    from minibroker.releases.semantics import Semantics
    from minibroker.security.acls import Authorizer

log = get_logger(__name__)

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})
_CREATE_TOPICS_VERSION = 7
_CREATE_TIMEOUT_MS = 30_000


class Broker:
    """State of one broker; everything slow or random is handed in.

    node_id, epoch: the node id and epoch of its registration.
    settings, semantics, image: what it starts with.
    directory: its data directory.
    clock: the broker clock.
    timers: real time.
    transport: sends to other brokers and the controller.
    random: source of member ids and session ids.
    log_dir: the path of the data directory in responses.
    volume_bytes: (total, usable) bytes of its volume, -1 when not known.
    """

    def __init__(
        self,
        *,
        node_id: int,
        epoch: int,
        settings: Settings,
        semantics: Semantics,
        image: MetadataImage,
        directory: DataDirectory,
        clock: ClockTimers,
        timers: Timers,
        executor: Executor,
        transport: Transport,
        random: Random,
        log_dir: str,
        volume_bytes: Callable[[], tuple[int, int]] = lambda: (-1, -1),
    ) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self._base_settings = settings
        self.settings = self._altered_settings(image) if image.broker_configs else settings
        self.semantics = semantics
        self.image = image
        self.directory = directory
        self.clock = clock
        self.timers = timers
        #: turns of the loop for long requests of clients
        self.lane = Lane(timers)
        self.executor = executor
        self.transport = transport
        self.random = random
        self.log_dir = log_dir
        #: How clients of each listener are told to reach this broker (`Node`).
        self.listeners: Mapping[int, tuple[str, int]] = {}
        self.name_for: Callable[[str, str], str] | None = None
        self.volume_bytes = volume_bytes
        #: None: every client may do anything.
        self.authorizer: Authorizer | None = create_authorizer(settings)
        self.refusals = Refusals()
        self.refused_appends = RefusedAppends(timers, log_dir)
        self.fetch_sessions = FetchSessionCache(
            settings.get_int("max.incremental.fetch.session.cache.slots"), Random(random.getrandbits(64))
        )
        self._partitions: dict[tuple[str, int], Partition] = {}
        #: Partitions of deleted topics whose files are still to be deleted.
        self._doomed: deque[Partition] = deque()
        self._news = InOrder(timers)
        self._recovered: dict[tuple[str, int], PartitionLog] = {}
        self._stored: set[tuple[str, int]] = set(directory.partitions())
        self.replication = Replication(self)
        self.controller_channel = ControllerChannel(transport, timers, lambda: self._news.idle)
        self._heartbeat = BrokerLifecycleManager(self)
        self.producer_ids = ProducerIdBlocks(self.allocate_producer_ids)
        self.coordinators = Coordinators(self)
        self._started = False
        self.maintenance = LogMaintenance(self)

    # -- life cycle --------------------------------------------------------------------------------------------------

    def prepare(self, *, remove_strays: bool = False) -> None:
        """Read from disk what `start` needs; may run on another thread, before this broker is registered. After an
        unclean shutdown each log is checked and repaired.

        remove_strays: delete replicas that were taken from this broker, or whose topic was deleted, while it was down.
        Raises ApiError KAFKA_STORAGE_ERROR for lost data that the settings do not let it start on.
        """
        self._look_for_lost_data()
        if remove_strays:
            self._remove_strays()
        for warning in self.directory.warnings:
            log.warning("%s", warning)
        if not self.directory.clean:
            self._recover()

    def start(self, image: MetadataImage) -> None:
        """Take up every partition of the image, which may be newer than the one of `prepare`."""
        for topic, index in sorted(self._recovered):
            now = image.partition(topic, index)
            if now is None or self.node_id not in now.replicas:
                self._recovered.pop((topic, index)).abandon()
        if image is not self.image:
            self.image = image
            self._remove_strays()
        self.image = replace(image, topics={}, topic_names={})
        at_once(self._follow(image, tuple(image.topics)))
        if not self.directory.clean:
            for partition in self._partitions.values():
                if partition.has_log:
                    partition.log  # noqa: B018  (takes over what was recovered, or says why it could not be)
        self.coordinators.start()
        self._started = True
        self.maintenance.start()
        self.replication.start()
        self._heartbeat.start()

    def _look_for_lost_data(self) -> None:
        held = [
            (topic.name, partition.index)
            for topic in self.image.topics.values()
            for partition in topic.partitions
            if self.node_id in partition.replicas
        ]
        never_compacted = {
            topic.name
            for topic in self.image.topics.values()
            if "compact" not in cast("tuple[str, ...]", self.settings.topic_value("cleanup.policy", topic.configs))
        }
        lost = self.directory.lost(held, never_compacted)
        lost_data.report(lost, self.log_dir, self.settings)
        missing = {loss.directory for loss in lost} - {self.directory.partition_path(*key) for key in self._stored}
        for key in held:
            if self.directory.partition_path(*key) in missing:
                self.directory.forget(*key)  # otherwise it would be logged again until the partition is written to

    def _recover(self) -> None:
        """Check and repair the logs after an unclean shutdown, several at a time, on the executor's threads."""

        def recover(key: tuple[str, int]) -> None:
            # A log that cannot be opened fails again where its partition asks for it, and is reported there.
            with suppress(ApiError):
                self._recovered[key] = self._open_log(key, self.image.topics[key[0]].topic_id)

        wanted = [
            (topic, index)
            for topic, index in sorted(self._stored)
            if (image := self.image.partition(topic, index)) is not None and self.node_id in image.replicas
        ]
        self.executor.each(recover, wanted)

    def _remove_strays(self) -> None:
        for topic, index in sorted(self._stored):
            image, partition = self.image.topics.get(topic), self.image.partition(topic, index)
            if image is not None and partition is not None and self.node_id in partition.replicas:
                stored_id = self.directory.topic_id(topic, index)
                if stored_id in (None, image.topic_id):
                    continue
            log.info("removing the stray replica %s-%d", topic, index)
            self._stored.discard((topic, index))
            self.directory.disk.remove_tree(self.directory.partition_path(topic, index))
            self.directory.forget(topic, index)

    def _stop(self) -> None:
        self._started = False
        self._news.close()
        self._heartbeat.stop()
        self.refused_appends.close()
        self.controller_channel.close()
        self.replication.stop()
        self.maintenance.stop()
        self.coordinators.close()

    def kill(self) -> None:
        """End at once, as a crash would: nothing is flushed, closed or written."""
        self._stop()
        for partition in (*self._partitions.values(), *self._doomed):
            partition.abandon()
        self.directory.release()

    def close(self, *, keep: bool = True) -> None:
        """Shut down cleanly: unload the coordinators, close the logs, write the checkpoints and the marker of a clean
        shutdown. Without `keep` the disk is discarded and nothing is written."""
        open_logs = self._let_go()
        if keep:
            self._close_files(open_logs)
        else:
            self.directory.release()

    def close_aside(self) -> Deferred[None]:
        """`close` for a broker of a cluster that keeps running: it stops at once; resolved when the files are
        closed."""
        open_logs = self._let_go()
        return self.executor.aside(lambda: self._close_files(open_logs))

    def discard(self) -> None:
        """Discard a broker that was prepared and never started."""
        for held in self._recovered.values():
            held.abandon()
        self._recovered.clear()
        self.directory.release()

    def _let_go(self) -> list[PartitionLog]:
        self._stop()
        closed = [partition.close() for partition in (*self._partitions.values(), *self._doomed)]
        return [held for held in closed if held is not None]

    def _close_files(self, open_logs: list[PartitionLog]) -> None:
        self.executor.each(_close_log, open_logs)
        self.directory.close(open_logs, broker_epoch=self.epoch)

    # -- metadata ----------------------------------------------------------------------------------------------------

    def on_image(self, image: MetadataImage, changed: Iterable[str]) -> None:
        """Follow the controller, one image after another (Kafka's BrokerMetadataPublisher). A change of many partitions
        is followed in turns: a new topic is seen once it is whole, a deleted one disappears at once. Responses of the
        controller that this broker passes on wait until the change is followed."""
        self._news.run(self._follow(image, tuple(changed)))

    async def _follow(self, image: MetadataImage, changed: tuple[str, ...]) -> None:
        before = self.image
        both = (name for name in changed if name in before.topics and name in image.topics)
        replaced = tuple(name for name in both if before.topics[name].topic_id != image.topics[name].topic_id)
        if replaced:
            unreplaced = {name: topic for name, topic in before.topics.items() if name not in replaced}
            await self._follow(replace(before, topics=unreplaced), replaced)
            before = self.image
        made = await self._new_partitions(image, changed)
        self.image = image
        self._partitions.update(made)
        gone = [
            topic for name in changed if name not in image.topics and (topic := before.topics.get(name)) is not None
        ]
        for topic in gone:
            removed = (self._partitions.pop((topic.name, index), None) for index in range(len(topic.partitions)))
            self._doomed.extend(partition for partition in removed if partition is not None)
        if self._started:
            self._heartbeat.start()
        if image.broker_configs is not before.broker_configs:
            await self._reconfigure(image)
        elif image.features is not before.features:
            self.coordinators.reconfigure()
        while self._doomed:
            await STEP
            if self._news.closed:
                return
            self._drop(self._doomed.popleft())
        for topic in gone:
            self.coordinators.topic_deleted(topic.name)
        for name in changed:
            if name in image.topics:
                await self._change_roles(before.topics.get(name), image.topics[name], made)
        if image.brokers is not before.brokers:
            self.replication.review()

    def _altered_settings(self, image: MetadataImage) -> Settings:
        return self._base_settings.altered(
            cluster=dict(image.broker_configs.get("", {})), broker=dict(image.broker_configs.get(str(self.node_id), {}))
        )

    async def _reconfigure(self, image: MetadataImage) -> None:
        self.settings = self._altered_settings(image)
        self.coordinators.reconfigure()
        rules = self.producer_rules()
        for partition in self.partitions():
            await STEP
            if partition.is_open:
                partition.log.producers.rules = rules
                topic = image.topics.get(partition.topic)
                if topic is not None:
                    partition.update_config(self.settings.log_config(topic.configs))

    async def _new_partitions(self, image: MetadataImage, changed: tuple[str, ...]) -> dict[tuple[str, int], Partition]:
        """Replicas of this broker that it does not have yet."""
        made = {}
        for name in changed:
            topic = image.topics.get(name)
            if topic is None:
                continue
            for partition in topic.partitions:
                await STEP
                key = (name, partition.index)
                if self.node_id in partition.replicas and key not in self._partitions:
                    made[key] = self._new_partition(topic, partition)
        return made

    async def _change_roles(
        self, old: TopicImage | None, new: TopicImage, made: Mapping[tuple[str, int], Partition]
    ) -> None:
        """What this broker does for each partition of a topic, of which those in `made` are new."""
        for partition in new.partitions:
            await STEP
            key = (new.name, partition.index)
            held = self._partitions.get(key)
            if self._news.closed or held is None:
                continue
            if key in made:
                self._role_changed(held, was_leader=False)
                continue
            if self.node_id not in partition.replicas:
                self._drop(held)
                continue
            if old is not None and old.configs is not new.configs and held.is_open:
                held.update_config(self.settings.log_config(new.configs))
            was_leader = held.is_leader
            if held.follow(partition):
                self._role_changed(held, was_leader=was_leader)

    def _role_changed(self, partition: Partition, *, was_leader: bool) -> None:
        """Another leader or a new epoch of the same one: coordinators and fetchers go along."""
        self.replication.role_changed(partition)
        if partition.is_leader:
            self.coordinators.elected(partition, partition.leader_epoch)
        elif was_leader:
            self.coordinators.resigned(partition.topic, partition.index)

    def _new_partition(self, topic: TopicImage, partition: PartitionImage) -> Partition:
        key = (topic.name, partition.index)
        if key not in self._stored:
            try:
                self.directory.begin(*key)
            except StorageError as error:
                log.error("the checkpoints still name an earlier %s-%d: %s", *key, error)
        return Partition(
            topic.name,
            partition.index,
            topic.topic_id,
            broker_id=self.node_id,
            image=partition,
            open_log=lambda: self._open_log(key, topic.topic_id),
            make_flush=self._make_flush,
            clock=self.clock,
            replication=self.replication,
            written=key in self._stored,
        )

    def _open_log(self, key: tuple[str, int], topic_id: bytes) -> PartitionLog:
        recovered = self._recovered.pop(key, None)
        if recovered is not None:
            return recovered
        topic = self.image.topics.get(key[0])
        opened = self.directory.open_log(
            *key,
            config=self.settings.log_config(topic.configs if topic is not None else {}),
            rules=self.producer_rules(),
            now_ms=self.clock.now_ms(),
            topic_id=topic_id,
        )
        for warning in opened.warnings:
            log.warning("%s-%d: %s", key[0], key[1], warning)
        return opened

    def _make_flush(
        self, opened: PartitionLog, flushed: Callable[[], None], failed: Callable[[ApiError], None]
    ) -> LogFlush:
        return LogFlush(opened, executor=self.executor, clock=self.clock, flushed=flushed, failed=failed)

    def producer_rules(self) -> ProducerRules:
        """The semantics' rules for partitions, with what the settings say."""
        return self.semantics.producer._replace(
            producer_id_expiration_ms=self.settings.get_int(self.semantics.producer_state_expiration),
            verification_enabled=self.settings.get_boolean("transaction.partition.verification.enable"),
        )

    def _drop(self, partition: Partition) -> None:
        """The topic is deleted, or a reassignment took the replica from this broker."""
        key = (partition.topic, partition.index)
        self._partitions.pop(key, None)
        self.replication.forget(partition)
        self.coordinators.resigned(partition.topic, partition.index)
        if partition.has_log:
            self._stored.discard(key)
            try:
                path = self.directory.delete_log(partition.log, f"{self.random.getrandbits(128):032x}")
            except ApiError as error:  # as in Kafka, the rest of the change goes on
                log.error("%s stays on the disk, which cannot delete it: %s", partition, error)
            else:
                self.executor.submit(lambda: self.directory.disk.remove_tree(path))
        partition.dropped()

    # -- what handlers ask -------------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """The partition, led by this broker.

        Raises ApiError UNKNOWN_TOPIC_OR_PARTITION, or NOT_LEADER_OR_FOLLOWER when another broker leads it.
        """
        partition = self._partitions.get((topic, index))
        if partition is not None and partition.leader_id == self.node_id:
            return partition
        raise self._not_here(topic, index, "lead")

    def replica(self, topic: str, index: int) -> Partition:
        """The partition, led or followed by this broker; raises as `partition`."""
        held = self._partitions.get((topic, index))
        if held is None:
            raise self._not_here(topic, index, "hold")
        return held

    def _not_here(self, topic: str, index: int, what: str) -> ApiError:
        if self.image.partition(topic, index) is None:
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.node_id} does not {what} {topic}-{index}")

    def partitions(self) -> Iterator[Partition]:
        """Every partition this broker holds, led or followed."""
        return iter(tuple(self._partitions.values()))

    def partition_count(self, internal_topic: str, config: str) -> int:
        """Partitions of an internal topic, or what `config` says it will have while it does not exist."""
        topic = self.image.topics.get(internal_topic)
        return self.settings.get_int(config) if topic is None else len(topic.partitions)

    def coordinator_of(self, internal_topic: str, key: str) -> int | None:
        """Node that coordinates a group or transactional id; None while the topic or its leader is missing."""
        topic = self.image.topics.get(internal_topic)
        if topic is None:
            return None
        return self.image.leader_of(internal_topic, partition_for(key, len(topic.partitions)))

    def advertised(self, connection: ConnectionInfo) -> list[tuple[BrokerImage, str, int]]:
        """(broker, host, port) of all brokers for this client: a broker that listens on every address under the name or
        address that the client used, this broker under its advertised listener."""
        own = self.listeners.get(connection.local_port) if self.listeners else None
        addresses = []
        for broker in self.image.brokers.values():
            host, port = own if own is not None and broker.node_id == self.node_id else (broker.host, broker.port)
            if host in _WILDCARDS:
                local = connection.local_host
                host = connection.server_name or (
                    local if self.name_for is None else self.name_for(connection.client_host, local)
                )
            addresses.append((broker, host, port))
        return addresses

    def create_topics(self, names: list[str]) -> Deferred[dict[str, ErrorCode]]:
        """Have the controller create topics with the broker's defaults; resolves with those it refused."""
        return spawn(self._create_topics(names))

    async def _create_topics(self, names: list[str]) -> dict[str, ErrorCode]:
        response = await ask_controller(
            self.controller_channel,
            CreateTopicsRequest(
                topics=[creatable(name, self.settings) for name in names], timeout_ms=_CREATE_TIMEOUT_MS
            ),
            _CREATE_TOPICS_VERSION,
            CreateTopicsResponse,
        )
        return {
            result.name: ErrorCode(result.error_code)
            for result in response.topics
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        }

    def allocate_producer_ids(self) -> Deferred[tuple[int, int]]:
        """(first id, count) of a fresh block from the controller."""
        return spawn(self._allocate_producer_ids())

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        response = await ask_controller(
            self.controller_channel,
            AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.epoch),
            0,
            AllocateProducerIdsResponse,
        )
        if response.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(response.error_code), "the controller gave no block of producer ids")
        return response.producer_id_start, response.producer_id_len


def _close_log(held: PartitionLog) -> None:
    """Close one log cleanly; one that cannot be keeps the directory from being called clean."""
    try:
        held.close()
    except ApiError as error:
        log.error("closing %s-%d: %s", held.topic, held.partition, error)
