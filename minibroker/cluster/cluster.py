"""Puts a cluster together: controller, brokers, transport, and the topics found on disk."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from minibroker.cluster.broker import Broker
from minibroker.cluster.metadata import BrokerImage
from minibroker.cluster.transport import CONTROLLER, InProcessTransport
from minibroker.controller.controller import Controller
from minibroker.controller.features import TRANSACTION_VERSION, default_features
from minibroker.controller.journal import MetadataJournal
from minibroker.controller.state import ControllerState
from minibroker.controller.topics import TopicControl
from minibroker.handlers.dispatch import Dispatcher
from minibroker.handlers.table import make_dispatcher
from minibroker.logs import get_logger
from minibroker.runtime.clock import BrokerClock, Timers
from minibroker.runtime.executor import Executor
from minibroker.semantics import Semantics
from minibroker.settings import Settings
from minibroker.version import __version__
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.topics import CreateTopicsRequest
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import Disk, join
from minibroker_storage.partition_metadata import FILE_NAME as METADATA_FILE
from minibroker_storage.partition_metadata import decode_partition_metadata

log = get_logger(__name__)

NO_VOLUME: tuple[int, int] = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker to be: where it is reached (as clients shall be told) and where it keeps its data.

    host: "" or a wildcard address stands for whichever local address a client connected to.
    """

    node_id: int
    host: str
    port: int
    disk: Disk
    log_dir: str = ""
    rack: str | None = None
    volume_bytes: Callable[[], tuple[int, int]] = lambda: NO_VOLUME


class Cluster:
    """All brokers of one process and their controller.

    journal_disk: where the controller keeps its journal; with one broker its own data directory.
    transaction_version: level of the feature to finalize; None takes the semantics' for a new cluster and leaves an
    existing one as it is. topics: name → partitions, created at start when they are missing.
    """

    def __init__(
        self,
        settings: Settings,
        semantics: Semantics,
        *,
        nodes: Sequence[Node],
        journal_disk: Disk,
        clock: BrokerClock,
        timers: Timers,
        executor: Executor,
        random: Random,
        transaction_version: int | None = None,
        topics: Mapping[str, int] | None = None,
        holder: str = "",
    ) -> None:
        if not nodes:
            raise ValueError("a cluster has at least one broker")
        self.settings = settings
        self.semantics = semantics
        self.clock = clock
        self.transport = InProcessTransport()
        self.brokers: dict[int, Broker] = {}
        self._nodes = nodes
        self._journal_disk = journal_disk
        self._timers = timers
        self._executor = executor
        self._random = random
        self._transaction_version = transaction_version
        self._topics = dict(topics or {})
        self._holder = holder
        self._dispatchers: dict[int, Dispatcher] = {}
        self._state: ControllerState | None = None
        self._directories: list[DataDirectory] = []

    def start(self) -> None:
        """Lock and read the data directories, then take up every partition.

        Raises DirectoryLocked, WrongDirectory, MalformedFile, StorageError of the storage, and ApiError.
        """
        try:
            self._start()
        except BaseException:
            for directory in self._directories:
                directory.release()
            if self._state is not None:
                self._state.close()
            raise

    def _start(self) -> None:
        cluster_id: str | None = None
        for node in self._nodes:
            directory = DataDirectory.open(
                node.disk,
                node_id=node.node_id,
                make_id=self._new_id,
                cluster_id=cluster_id,
                holder=self._holder,
                version=__version__,
            )
            self._directories.append(directory)
            cluster_id = directory.cluster_id
        assert cluster_id is not None
        state = ControllerState(
            self.settings,
            MetadataJournal(self._journal_disk),
            Random(self._random.getrandbits(64)),
            cluster_id=cluster_id,
            controller_id=self._nodes[0].node_id,
        )
        self._state = state
        level = self._transaction_version
        state.load(default_features(self.semantics.transaction_version if level is None else level))
        if level is not None and state.image.feature(TRANSACTION_VERSION) != level:
            state.set_feature(TRANSACTION_VERSION, level)
        for node in self._nodes:
            state.register_broker(BrokerImage(node.node_id, node.host, node.port, node.rack))
        self._adopt_topics(state)
        self.transport.attach(CONTROLLER, Controller(state).handle)
        for node, directory in zip(self._nodes, self._directories, strict=True):
            self._add_broker(node, directory, state)
        for broker in self.brokers.values():
            broker.start()
            state.subscribe(broker.on_image)
        self._create_topics(state)

    def _add_broker(self, node: Node, directory: DataDirectory, state: ControllerState) -> None:
        broker = Broker(
            node_id=node.node_id,
            settings=self.settings,
            semantics=self.semantics,
            image=state.image,
            directory=directory,
            clock=self.clock,
            timers=self._timers,
            executor=self._executor,
            transport=self.transport,
            random=Random(self._random.getrandbits(64)),
            log_dir=node.log_dir,
            volume_bytes=node.volume_bytes,
        )
        self.brokers[node.node_id] = broker
        dispatcher = make_dispatcher(broker)
        self._dispatchers[node.node_id] = dispatcher
        self.transport.attach(node.node_id, dispatcher.handle)

    def dispatcher(self, node_id: int) -> Dispatcher:
        """What serves the connections of broker `node_id`."""
        return self._dispatchers[node_id]

    def stop(self) -> None:
        """Close every broker cleanly, then the controller."""
        for broker in self.brokers.values():
            self.transport.detach(broker.node_id)
            broker.close()
        self.transport.detach(CONTROLLER)
        if self._state is not None:
            self._state.close()
        self.clock.close()

    def _new_id(self) -> str:
        return base64.urlsafe_b64encode(self._random.randbytes(16)).rstrip(b"=").decode()

    def _create_topics(self, state: ControllerState) -> None:
        missing = {name: count for name, count in self._topics.items() if name not in state.image.topics}
        if not missing:
            return
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name, num_partitions=count, replication_factor=-1, assignments=[], configs=[]
                )
                for name, count in missing.items()
            ],
            timeout_ms=0,
            validate_only=False,
        )
        for result in TopicControl(state).create_topics(request).topics:
            if result.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode(result.error_code), f"topic {result.name}: {result.error_message}")

    def _adopt_topics(self, state: ControllerState) -> None:
        """Topics that lie in the data directories but not in the journal, such as those a Kafka left there."""
        found: dict[str, dict[int, list[int]]] = {}
        ids: dict[str, bytes] = {}
        epochs: dict[str, int] = {}
        for directory in self._directories:
            for topic, index in directory.partitions():
                if topic in state.image.topics:
                    continue
                found.setdefault(topic, {}).setdefault(index, []).append(directory.node_id)
                path = join(directory.partition_path(topic, index), METADATA_FILE)
                if directory.disk.exists(path):
                    ids[topic] = decode_partition_metadata(directory.disk.read_bytes(path), path)
                epochs[topic] = max(epochs.get(topic, 0), _latest_epoch(directory, topic, index))
        for topic, partitions in sorted(found.items()):
            everywhere = tuple(d.node_id for d in self._directories)
            replicas = [tuple(partitions.get(i, everywhere[:1])) for i in range(max(partitions) + 1)]
            log.info("taking over topic %s with %d partition(s) found in the data directory", topic, len(replicas))
            state.add_topic(topic, replicas, {}, topic_id=ids.get(topic), leader_epoch=epochs[topic] + 2)


def _latest_epoch(directory: DataDirectory, topic: str, index: int) -> int:
    from minibroker_storage.checkpoints import LEADER_EPOCH
    from minibroker_storage.leader_epochs import LeaderEpochCache

    path = join(directory.partition_path(topic, index), LEADER_EPOCH)
    if not directory.disk.exists(path):
        return 0
    return LeaderEpochCache.decode(directory.disk.read_bytes(path), path).latest_epoch or 0
