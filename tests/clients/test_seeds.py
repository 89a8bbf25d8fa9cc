"""Rows of the seeds with an unmodified librdkafka under both semantics, on brokers whose state can be looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from minibroker import Minibroker
from minibroker.faults import DropReply, Error, Hold, Reorder
from minibroker.kernel.deferred import Deferred
from minibroker.requests.context import ConnectionInfo
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

pytestmark = pytest.mark.clients

SECONDS = 30.0
SEMANTICS = ("kafka", "kip")
Unique = Callable[[str], str]


@pytest.fixture(scope="module", params=SEMANTICS)
def shared(request: pytest.FixtureRequest) -> Iterator[Minibroker]:
    with Minibroker(semantics=request.param) as broker:
        yield broker


@pytest.fixture
def broker(shared: Minibroker) -> Iterator[Minibroker]:
    yield shared
    shared.faults.clear()


@pytest.fixture
def topic(broker: Minibroker, unique: Unique) -> str:
    name = unique("seeds")
    broker.state.create_topic(topic=name)
    return name


class Sender:
    """A producer that waits for each record; transactional with a name, else idempotent.

    track False: no delivery reports, which confluent-kafka cannot give any more when a fatal error comes out of flush.
    """

    def __init__(self, broker: Minibroker, topic: str, name: str | None, *, track: bool = True, **config: Any) -> None:
        self.topic = topic
        self.reports: dict[str, Any] = {"on_delivery": self._delivered} if track else {}
        self.offsets: list[int] = []
        self.errors: list[KafkaError] = []
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "linger.ms": 0,
            "log_level": 0,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 10,
            "error_cb": lambda _: None,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        if name is None:
            self.producer = Producer({**settings, "enable.idempotence": True})
        else:
            self.producer = Producer({**settings, "transactional.id": name})
            self.producer.init_transactions(SECONDS)

    def send(self, value: bytes, seconds: float = SECONDS) -> None:
        self.producer.produce(self.topic, value, partition=0, **self.reports)
        assert self.producer.flush(seconds) == 0

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.offsets.append(message.offset())
        else:
            self.errors.append(error)

    def commit(self, *values: bytes) -> None:
        self.producer.begin_transaction()
        for value in values:
            self.send(value)
        self.producer.commit_transaction(SECONDS)


class Known(NamedTuple):
    """What the coordinator has of a transactional id."""

    producer_id: int
    epoch: int
    last_epoch: int


def known(broker: Minibroker, name: str) -> Known:
    def look(cluster: Any) -> Known:
        node_id = cluster.coordinator("transaction", name)
        entry = cluster.brokers[node_id].coordinators.transactions.describe(name)
        return Known(entry.metadata.producer_id, entry.epoch, entry.last_epoch)

    found: Known = broker.cluster.run(look)
    return found


def read(broker: Minibroker, topic: str) -> list[bytes]:
    """Partition 0 as a read_committed consumer sees it."""
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = reader.poll(SECONDS)
            assert message is not None, f"no end of {topic} after {found}"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
            found.append(message.value())
    finally:
        reader.close()


def refused(broker: Minibroker, api: str, subject: str) -> list[str]:
    """Errors of one API that were about `subject`."""
    return [r.error for r in broker.refusals() if r.api == api and r.subject == subject]


# -- epochs ------------------------------------------------------------------------------------------------------------


@pytest.mark.seed("360-1", "447-1", "588-6", semantics="kafka kip", how="confluent-kafka")
def test_a_new_instance_has_the_next_epoch_and_the_one_before_is_fenced(
    broker: Minibroker, topic: str, unique: Unique
) -> None:
    name = unique("tx")
    old = Sender(broker, topic, name, track=False)
    old.commit(b"old")
    before = known(broker, name)
    new = Sender(broker, topic, name)
    assert known(broker, name) == (before.producer_id, before.epoch + 1, -1)
    with pytest.raises(KafkaException) as raised:
        old.commit(b"zombie")
    assert raised.value.args[0].fatal()
    # librdkafka asks in versions that do not know PRODUCER_FENCED.
    assert [(r.code, r.api_version < 2) for r in broker.refusals() if r.subject == name] == [(47, True)]
    new.commit(b"new")
    assert read(broker, topic) == [b"old", b"new"]


@pytest.mark.seed("360-2", "360-3", "360-11", semantics="kafka kip", how="confluent-kafka")
def test_a_bump_whose_answer_is_lost_is_asked_for_again(broker: Minibroker, topic: str, unique: Unique) -> None:
    name = unique("tx")
    sender = Sender(broker, topic, name)
    sender.commit(b"1")
    before = known(broker, name)
    with broker.faults.inject("Produce", Error("UNKNOWN_PRODUCER_ID"), topic=topic):
        with pytest.raises(KafkaException) as raised:
            sender.commit(b"2")
        assert raised.value.args[0].txn_requires_abort()
    with broker.faults.inject("InitProducerId", DropReply(), transactional_id=name) as fault:
        sender.producer.abort_transaction(SECONDS)
        sender.commit(b"2")
        assert fault.fired == 1
    # Bumped once, though it was asked for twice, and sequences began anew.
    assert known(broker, name) == (before.producer_id, before.epoch + 1, before.epoch)
    assert read(broker, topic) == [b"1", b"2"]
    assert refused(broker, "Produce", f"{topic}-0") == []


def ask_again(broker: Minibroker, name: str, held: Known) -> int:
    """The code for a copy of the bump at `held` that a network delivers now."""

    def serve(cluster: Any) -> Any:
        header = RequestHeader(request_api_key=22, request_api_version=4, correlation_id=1, client_id="a copy")
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=held.producer_id,
            producer_epoch=held.epoch,
        )
        frame = bytearray(header.encode(2) + request.encode(4))
        return cluster.dispatcher(1).dispatch(frame, ConnectionInfo(local_host="127.0.0.1"))

    answer = b"".join(broker.cluster.run(serve))
    response, _ = InitProducerIdResponse.decode_from(answer, 4, 9)
    return response.error_code


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.seed("360-2", "360-3", "360-11", semantics="kafka kip", how="confluent-kafka")
def test_a_late_copy_of_a_bump_meets_the_next_transaction(semantics: str, level: int) -> None:
    """The text's loop: abort on what is not fatal, and again. Under kafka the copy ends the client, as with Kafka."""
    with Minibroker(semantics=semantics, transaction_version=level, topics={"t": 1}) as broker:
        sender = Sender(broker, "t", "tx", track=False)
        sender.commit(b"1")
        held = known(broker, "tx")
        with broker.faults.inject("Produce", Error("UNKNOWN_PRODUCER_ID"), topic="t"):
            with pytest.raises(KafkaException) as raised:
                sender.commit(b"2")
            assert raised.value.args[0].txn_requires_abort()
        sender.producer.abort_transaction(SECONDS)
        sender.producer.begin_transaction()
        sender.send(b"2")
        bumped = known(broker, "tx")
        assert bumped == (held.producer_id, held.epoch + 1, held.epoch)
        code = ask_again(broker, "tx", held)
        if semantics == "kip":
            assert code == ErrorCode.NONE
            assert known(broker, "tx") == bumped
            sender.producer.commit_transaction(SECONDS)
            sender.commit(b"3")
            assert read(broker, "t") == [b"1", b"2", b"3"]
            assert refused(broker, "EndTxn", "tx") == []
        else:
            assert code == ErrorCode.CONCURRENT_TRANSACTIONS
            with pytest.raises(KafkaException) as raised:
                sender.producer.commit_transaction(SECONDS)
            assert raised.value.args[0].fatal()
            assert read(broker, "t") == [b"1"]


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.seed("360-2", "360-11", semantics="kafka kip", how="confluent-kafka")
def test_the_owner_asks_for_a_bump_while_its_transaction_runs(semantics: str, level: int) -> None:
    """Told UNKNOWN_PRODUCER_ID by EndTxn, librdkafka aborts by claiming at its current epoch alone. With Kafka that
    fences it below transaction.version 2."""
    with Minibroker(semantics=semantics, transaction_version=level, topics={"t": 1}) as broker:
        sender = Sender(broker, "t", "tx", track=False)
        sender.commit(b"1")
        held = known(broker, "tx")
        sender.producer.begin_transaction()
        sender.send(b"aborted")
        with broker.faults.inject("EndTxn", Error("UNKNOWN_PRODUCER_ID"), transactional_id="tx"):
            if semantics == "kafka" and level < 2:
                with pytest.raises(KafkaException) as raised:
                    sender.producer.abort_transaction(SECONDS)
                assert raised.value.args[0].fatal()
                assert refused(broker, "InitProducerId", "tx")[-1] == "PRODUCER_FENCED"
                return
            sender.producer.abort_transaction(SECONDS)
        sender.commit(b"2")
        assert known(broker, "tx") == (held.producer_id, held.epoch + 1, held.epoch)
        assert set(refused(broker, "InitProducerId", "tx")) == {"CONCURRENT_TRANSACTIONS"}
        assert read(broker, "t") == [b"1", b"2"]


@pytest.mark.seed("360-2", "360-11", "360-12", "360-16", semantics="kafka kip", how="confluent-kafka")
def test_a_late_copy_of_a_batch_that_expired_is_refused(broker: Minibroker, topic: str, unique: Unique) -> None:
    name = unique("tx")
    sender = Sender(broker, topic, name, message_timeout_ms=2500, socket_timeout_ms=3000)
    sender.commit(b"1")
    before = known(broker, name)
    with broker.faults.inject("Produce", Hold(), topic=topic) as fault:
        with pytest.raises(KafkaException) as raised:
            sender.commit(b"late")
        assert raised.value.args[0].txn_requires_abort()
        assert [error.code() for error in sender.errors] == [KafkaError._MSG_TIMED_OUT]
        sender.producer.abort_transaction(SECONDS)
        sender.producer.begin_transaction()  # by now the epoch is bumped
        deadline = time.monotonic() + SECONDS
        while known(broker, name).epoch == before.epoch:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        sender.producer.abort_transaction(SECONDS)
        assert known(broker, name) == (before.producer_id, before.epoch + 1, before.epoch)
        fault.release()
        while not refused(broker, "Produce", f"{topic}-0"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert refused(broker, "Produce", f"{topic}-0") == ["INVALID_PRODUCER_EPOCH"]
    sender.commit(b"2")
    assert read(broker, topic) == [b"1", b"2"]


@pytest.mark.seed("360-6", semantics="kafka kip", how="confluent-kafka")
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_an_expired_transactional_id_gets_a_new_producer_id(semantics: str) -> None:
    config = {
        "transactional.id.expiration.ms": 600_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 60_000,
    }
    with Minibroker(semantics=semantics, topics={"t": 1}, config=config) as broker:
        sender = Sender(broker, "t", "tx")
        sender.commit(b"1")
        before = known(broker, "tx")
        broker.clock.advance(ms=700_000)
        with pytest.raises(KafkaException) as raised:
            sender.commit(b"lost")
        assert raised.value.args[0].txn_requires_abort()
        assert "INVALID_PRODUCER_ID_MAPPING" in refused(broker, "AddPartitionsToTxn", "tx")
        sender.producer.abort_transaction(SECONDS)
        sender.commit(b"2")
        after = known(broker, "tx")
        assert after.producer_id != before.producer_id
        assert read(broker, "t")[-1] == b"2"
        assert b"lost" not in read(broker, "t")


# -- producer state ----------------------------------------------------------------------------------------------------


@pytest.mark.seed("360-9", semantics="kafka kip", how="confluent-kafka")
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_state_outlives_its_records_and_goes_with_time(semantics: str) -> None:
    """Forgotten after producer.id.expiration.ms under kafka; kip keeps it for transactional.id.expiration.ms."""
    config = {"producer.id.expiration.ms": 60_000, "producer.id.expiration.check.interval.ms": 10_000}
    with Minibroker(semantics=semantics, topics={"t": 1}, config=config) as broker:
        sender = Sender(broker, "t", None)
        sender.send(b"1")
        sender.send(b"2")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for future in admin.delete_records([TopicPartition("t", 0, 2)]).values():
            future.result(SECONDS)
        sender.send(b"3")
        assert sender.offsets == [0, 1, 2]

        def sequences(cluster: Any) -> list[int]:
            return [p.last_sequence for p in cluster.brokers[1].partition("t", 0).log.producers.active()]

        assert broker.cluster.run(sequences) == [2]
        broker.clock.advance(ms=90_000)
        assert broker.cluster.run(sequences) == ([2] if semantics == "kip" else [])
        sender.send(b"4")
        assert sender.errors == []
        assert refused(broker, "Produce", "t-0") == []
        assert read(broker, "t") == [b"3", b"4"]


@pytest.mark.seed("360-9", semantics="kafka kip", how="confluent-kafka")
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_state_outlives_its_records_over_a_restart(semantics: str, tmp_path: Path) -> None:
    """All records deleted, an orderly stop, a start: the producers go on where they were, without a refusal."""
    with Minibroker(semantics=semantics, data_dir=tmp_path, topics={"t": 1}) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        sender, idempotent = Sender(broker, "t", "tx"), Sender(broker, "t", None)
        sender.commit(b"1")
        idempotent.send(b"2")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for future in admin.delete_records([TopicPartition("t", 0, 3)]).values():
            future.result(SECONDS)
    with Minibroker(semantics=semantics, data_dir=tmp_path, port=port) as broker:

        def producers(cluster: Any) -> int:
            return len(cluster.brokers[1].partition("t", 0).log.producers.active())

        # Kafka forgets them here, and takes any sequence of a producer that it does not know.
        assert broker.cluster.run(producers) == (2 if semantics == "kip" else 0)
        idempotent.send(b"3")
        sender.commit(b"4")
        assert [r for r in broker.refusals() if r.api == "Produce" and r.subject == "t-0"] == []
        assert read(broker, "t") == [b"3", b"4"]


@pytest.mark.seed("oos-4", semantics="kafka kip", how="confluent-kafka")
def test_a_batch_that_was_written_already_is_acknowledged_with_its_offset(broker: Minibroker, topic: str) -> None:
    sender = Sender(broker, topic, None)
    with broker.faults.inject("Produce", DropReply(), topic=topic, nth=2) as fault:
        for value in (b"1", b"2", b"3"):
            sender.send(value)
        assert fault.fired == 1
    assert sender.offsets == [0, 1, 2]
    assert read(broker, topic) == [b"1", b"2", b"3"]


@pytest.mark.seed("360-12", "oos-5", semantics="kafka kip", how="confluent-kafka")
def test_nothing_follows_a_gap(broker: Minibroker, topic: str) -> None:
    """Batches in flight whose order a network changed: what comes too early is refused and fails the ones behind it."""
    sender = Sender(broker, topic, None, track=False, batch_num_messages=1, max_in_flight=5)
    sender.send(b"0")
    with broker.faults.inject("Produce", Reorder(within_ms=10_000), topic=topic):
        for number in range(1, 4):
            sender.producer.produce(topic, b"%d" % number, partition=0)
        with pytest.raises(KafkaException) as raised:
            sender.producer.flush(SECONDS)
    assert raised.value.args[0].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert set(refused(broker, "Produce", f"{topic}-0")) == {"OUT_OF_ORDER_SEQUENCE_NUMBER"}
    found = read(broker, topic)
    assert found == [b"%d" % number for number in range(len(found))]
    assert len(found) >= 2


# -- offsets in transactions -------------------------------------------------------------------------------------------


@pytest.mark.seed("447-2", "447-4", semantics="kafka kip", how="confluent-kafka")
def test_offsets_go_with_their_transaction_and_are_fenced_by_the_group(
    broker: Minibroker, topic: str, unique: Unique
) -> None:
    feeder = Sender(broker, topic, None)
    feeder.send(b"x")
    group = unique("group")
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    sender = Sender(broker, topic, unique("tx"))
    target = TopicPartition(topic, 0, 1)
    first = Consumer(settings)
    first.subscribe([topic])
    assert first.poll(SECONDS) is not None
    stale = first.consumer_group_metadata()
    first.close()
    second = Consumer(settings)
    second.subscribe([topic])
    assert second.poll(SECONDS) is not None
    try:
        for commit, offset in ((False, -1001), (True, 1)):
            sender.producer.begin_transaction()
            sender.producer.send_offsets_to_transaction([target], second.consumer_group_metadata(), SECONDS)
            if commit:
                sender.producer.commit_transaction(SECONDS)
            else:
                sender.producer.abort_transaction(SECONDS)
            assert second.committed([TopicPartition(topic, 0)], SECONDS)[0].offset == offset
        sender.producer.begin_transaction()
        with pytest.raises(KafkaException) as raised:
            sender.producer.send_offsets_to_transaction([TopicPartition(topic, 0, 9)], stale, SECONDS)
        assert raised.value.args[0].txn_requires_abort()
        sender.producer.abort_transaction(SECONDS)
        assert second.committed([TopicPartition(topic, 0)], SECONDS)[0].offset == 1
    finally:
        second.close()
    assert set(refused(broker, "TxnOffsetCommit", group)) <= {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"}
    assert refused(broker, "TxnOffsetCommit", group)


# -- restarts and failovers --------------------------------------------------------------------------------------------


@pytest.mark.seed("447-6", semantics="kafka kip", how="confluent-kafka")
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_producer_goes_on_over_a_restart(semantics: str, tmp_path: Path) -> None:
    """Without the rebuilt state kip would answer UNKNOWN_PRODUCER_ID to the next sequence."""
    with Minibroker(semantics=semantics, data_dir=tmp_path, topics={"t": 1}) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        sender, idempotent = Sender(broker, "t", "tx"), Sender(broker, "t", None)
        sender.commit(b"1")
        idempotent.send(b"2")
        before = known(broker, "tx")
    with Minibroker(semantics=semantics, data_dir=tmp_path, port=port) as broker:
        idempotent.send(b"3")
        sender.commit(b"4")
        assert known(broker, "tx").producer_id == before.producer_id
        assert read(broker, "t") == [b"1", b"2", b"3", b"4"]
        assert [r for r in broker.refusals() if r.api == "Produce" and r.subject == "t-0"] == []


@pytest.mark.seed("360-7", semantics="kafka kip", how="confluent-kafka")
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_producer_goes_on_over_a_change_of_level(semantics: str) -> None:
    """Version 0 of the message, then 1, then 0 again, each loaded by the next coordinator; bumps in between."""
    with Minibroker(brokers=2, semantics=semantics, transaction_version=0, topics={"t": 1}) as broker:
        sender = Sender(broker, "t", "tx")
        sender.commit(b"0")
        for number, level in enumerate((1, 0, 2), 1):
            broker.cluster.run(lambda cluster, level=level: _finalize(cluster, level))
            before = known(broker, "tx")
            with broker.faults.inject("Produce", Error("UNKNOWN_PRODUCER_ID"), topic="t"):
                with pytest.raises(KafkaException):
                    sender.commit(b"refused")
                sender.producer.abort_transaction(SECONDS)
            coordinator = broker.cluster.coordinator("transaction", "tx")
            assert coordinator is not None
            broker.cluster.move_coordinator("transaction", "tx", 3 - coordinator)
            sender.commit(b"%d" % number)
            assert known(broker, "tx")[:2] == (before.producer_id, before.epoch + 1)
        assert read(broker, "t") == [b"0", b"1", b"2", b"3"]


def _finalize(cluster: Any, level: int) -> Deferred[Any]:
    from minibroker_protocol.messages.cluster import UpdateFeaturesRequest

    way = 1 if level > cluster.image.feature("transaction.version") else 2
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=way
    )
    answer: Deferred[Any] = cluster.controller.handle(UpdateFeaturesRequest(feature_updates=[update]), 1)
    return answer


@pytest.mark.seed("360-15", semantics="kafka kip", how="confluent-kafka")
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_lost_rotation_is_answered_alike_by_the_next_coordinator(semantics: str) -> None:
    config = {"default.replication.factor": "3", "transaction.state.log.num.partitions": "3"}
    with Minibroker(brokers=3, semantics=semantics, topics={"t": 1}, config=config) as broker:
        Sender(broker, "t", "tx").commit(b"1")
        _until(broker, "CompleteCommit")  # the client has its answer before that
        broker.cluster.run(_last_but_one_epoch)
        sender = Sender(broker, "t", "tx")
        before = known(broker, "tx")
        assert before.epoch == 32766
        refuse = broker.faults.inject("Produce", Error("UNKNOWN_PRODUCER_ID"), topic="t")
        with refuse, pytest.raises(KafkaException):
            sender.commit(b"refused")
        with (
            ThreadPoolExecutor(1) as pool,
            broker.faults.inject("EndTxn", Hold(when="after"), transactional_id="tx") as ended,
            broker.faults.inject("InitProducerId", DropReply(), transactional_id="tx") as lost,
            broker.faults.inject("InitProducerId", Hold(), transactional_id="tx") as again,
        ):
            aborting = pool.submit(sender.producer.abort_transaction, SECONDS)
            ended.wait(1)
            # While the markers are on their way the answer that is lost would be CONCURRENT_TRANSACTIONS.
            _until(broker, "CompleteAbort")
            ended.release()
            again.wait(1)
            assert lost.fired == 1
            rotated = known(broker, "tx")
            assert rotated[1:] == (0, 32766)
            assert rotated.producer_id != before.producer_id
            coordinator = broker.cluster.coordinator("transaction", "tx")
            assert coordinator is not None
            broker.cluster.move_coordinator("transaction", "tx", coordinator % 3 + 1)
        aborting.result(SECONDS)
        sender.commit(b"2")
        assert known(broker, "tx")[:2] == rotated[:2]
        assert read(broker, "t") == [b"1", b"2"]
        assert ErrorCode.PRODUCER_FENCED.name not in refused(broker, "InitProducerId", "tx")


def _until(broker: Minibroker, state: str) -> None:
    """Returns when the transaction of "tx" is in `state`."""

    def look(cluster: Any) -> str:
        service = cluster.brokers[cluster.coordinator("transaction", "tx")].coordinators.transactions
        return str(service.describe("tx").metadata.state.label)

    deadline = time.monotonic() + SECONDS
    while broker.cluster.run(look) != state:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _last_but_one_epoch(cluster: Any) -> Deferred[Any]:
    """As after 32,765 instances: the next one gets the last epoch a client may have."""
    service = cluster.brokers[cluster.coordinator("transaction", "tx")].coordinators.transactions
    index, shard = service.host.shard_for("tx")
    entry = shard.entries["tx"]
    moved: Deferred[Any] = service.host.execute(
        index, shard.write(entry, entry.metadata._replace(producer_epoch=32765), None)
    )
    return moved


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.seed("360-19", "360-10", semantics="kafka kip", how="confluent-kafka")
def test_a_leader_that_has_not_learnt_the_log_start(semantics: str, lost: bool) -> None:
    """The old leader alone knew that the records are deleted, and, if `lost`, had forgotten their producer: with the
    new one the records are back and the producer is known. Its client goes on either way."""
    config = {"default.replication.factor": "3", "transaction.state.log.num.partitions": "3"}
    with Minibroker(brokers=3, semantics=semantics, topics={"t": 1}, config=config) as broker:
        sender, idempotent = Sender(broker, "t", "tx"), Sender(broker, "t", None)
        sender.commit(b"1")
        idempotent.send(b"2")
        leader = broker.cluster.leader("t")
        assert leader is not None
        late = leader % 3 + 1
        broker.cluster.cut_link(leader, late)

        def delete(cluster: Any) -> list[int]:
            cluster.brokers[leader].partition("t", 0).log.delete_records(-1)
            return [cluster.brokers[node].replica("t", 0).log_start_offset for node in (leader, late)]

        deleted, kept = broker.cluster.run(delete)
        assert deleted > kept == 0
        if lost:
            assert len(broker.cluster.lose_producers("t", cause="expiration")) == 2
        told = lost and semantics == "kip"  # UNKNOWN_PRODUCER_ID: the client bumps, and what it sends then is held
        with (
            broker.faults.inject("Produce", Hold(), topic="t", nth=2 if told else 1) as held,
            ThreadPoolExecutor(1) as pool,
        ):
            sending = pool.submit(idempotent.send, b"3")
            held.wait(1)
            broker.cluster.move_leader("t", 0, late)
            broker.cluster.mend_link(leader, late)
            held.release()
            sending.result(SECONDS)
        sender.commit(b"4")
        assert idempotent.errors == sender.errors == []
        assert read(broker, "t") == [b"1", b"2", b"3", b"4"]
        assert ("UNKNOWN_PRODUCER_ID" in refused(broker, "Produce", "t-0")) is told
