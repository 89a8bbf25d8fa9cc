"""Producers as state machines: sequences, windows, retries, bumps and transactions as Kafka's own clients keep them.

Errors are taken as the Java client's TransactionManager and Sender take them: what is retriable is sent again with the
same sequence, a transactional producer aborts on what is abortable and bumps its epoch through InitProducerId (or, with
transaction.version 2, through EndTxn), an idempotent one bumps by itself; anything else ends the producer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from random import Random

from minibroker.coordinators.transactions.metadata import by_topic
from minibroker.kernel.deferred import Deferred, gather, spawn
from minibroker_lab.simulation.client import RETRIABLE, Client, ClientEnvironment
from minibroker_lab.simulation.evidence import Fact, TopicPartition
from minibroker_lab.simulation.history import ABORT, COMMIT, UNKNOWN, Record
from minibroker_lab.simulation.links import Disconnected
from minibroker_protocol import messages as m
from minibroker_protocol import records
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode

_WINDOW = 5
_PATIENCE = 25


class Abortable(Exception):
    """The transaction cannot be committed.

    bump: the producer needs another epoch before the next one.
    """

    def __init__(self, code: ErrorCode, *, bump: bool) -> None:
        super().__init__(code.name)
        self.code = code
        self.bump = bump


class Fatal(Exception):
    """The producer must not be used any more."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True)
class Batch:
    place: TopicPartition
    records: list[Record]
    sequence: int
    attempts: int = 0
    #: The reason of the last refusal.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Versions:
    """The request versions of clients that know a transaction.version."""

    produce: int
    init_producer_id: int
    add_partitions: int
    add_offsets: int
    end_txn: int
    txn_offset_commit: int


VERSIONS = {0: Versions(9, 4, 2, 2, 2, 3), 1: Versions(11, 5, 3, 4, 4, 4), 2: Versions(12, 5, 3, 4, 5, 5)}


class Producer(Client):
    """Idempotent without a transactional id.

    places: the partitions it writes to.
    """

    def __init__(
        self,
        world: ClientEnvironment,
        name: str,
        random: Random,
        places: Sequence[TopicPartition],
        *,
        transactional_id: str | None = None,
    ) -> None:
        super().__init__(world, name, random)
        self.places = list(places)
        self.transactional_id = transactional_id
        self.versions = VERSIONS[world.plan.client_version]
        self.producer_id = -1
        self.epoch = -1
        self.number = world.instance(transactional_id) if transactional_id else 0
        #: Whether it waits for InitProducerId, which fences all other instances.
        self.initialising = False
        self._sequences: dict[TopicPartition, int] = {}
        self._transaction: Hashable | None = None
        #: The one that runs, or ran last: its markers may not all be written.
        self.newest_transaction: Hashable | None = None
        #: The one that offsets were sent in last.
        self.offsets_in: Hashable | None = None
        self._joined: set[TopicPartition] = set()
        #: The transaction whose partitions a deposed coordinator accepted.
        self._joined_elsewhere: Hashable | None = None
        self._began_ms = 0.0
        #: When the transaction before the running one ended.
        self._ended_ms = 0.0
        # A transaction has timed out, and its producer has not yet asked for the epoch that the coordinator gave it
        # then.
        self._stained = False
        # Since when the epoch, and the coordinator's view of this producer, are what they are.
        self._epoch_ms = 0.0
        self._written_ms: dict[TopicPartition, float] = {}
        self._sent: dict[TopicPartition, set[int]] = {}
        self.links.moment = lambda: self._transaction

    def served_late(self, request: Request, moment: Hashable) -> None:
        super().served_late(request, moment)
        running = self._transaction
        if isinstance(request, m.EndTxnRequest) and running is not None and running != moment:
            self.tell("EndTxn of an earlier transaction", f"the late EndTxn of {moment} meets {running}")
            self.history.evidence.ended[running] = self.producer_id, self.epoch
        if isinstance(request, m.InitProducerIdRequest) and self.transactional_id is not None:
            late = self.history.evidence.late[self.transactional_id, "InitProducerId"]
            late.append(self.history.elapsed_ms())

    # -- epochs --------------------------------------------------------------------------------------------------------

    async def init(self, *, bump: bool = False, late: bool = False) -> None:
        """InitProducerId; with `bump` for the producer id and epoch held, which the coordinator may have taken back
        when `late`. Raises Fatal."""
        request = m.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.world.plan.transaction_timeout_ms,
            producer_id=self.producer_id if bump else -1,
            producer_epoch=self.epoch if bump else -1,
        )
        self._epoch_ms = self.world.schedule.elapsed_ms
        twice = False
        if self.transactional_id is None:
            answer = await self._init_anywhere(request)
        else:
            self.world.initialising(self.transactional_id, self.number)
            self.initialising = True
            answer, twice = await self.coordinate(
                "transaction", self.transactional_id, request, self.versions.init_producer_id, m.InitProducerIdResponse
            )
            if answer.error_code == ErrorCode.NONE:
                granted = answer.producer_id, answer.producer_epoch
                self.world.initialised(self.transactional_id, self.number, granted)
            self.initialising = False
        if answer.error_code != ErrorCode.NONE:
            self._refused("InitProducerId", ErrorCode(answer.error_code), late=late, again=bump and twice)
            raise Fatal(ErrorCode(answer.error_code))
        if bump and answer.producer_id == self.producer_id and answer.producer_epoch <= self.epoch:
            text = f"{self.name}: a bump from epoch {self.epoch} gave {answer.producer_epoch}"
            self.history.report("epoch-back", self.transactional_id or "", -1, text)
        self._begin_epoch(answer.producer_id, answer.producer_epoch)
        self._stained = False
        self.tell("producer initialised", f"has producer id {self.producer_id} epoch {self.epoch}")

    async def _init_anywhere(self, request: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
        while True:
            self.doing = "InitProducerId"
            try:
                answer = await self.ask(self.bootstrap(), request, 4, m.InitProducerIdResponse)
            except Disconnected:
                await self.pause(50)
                continue
            if ErrorCode(answer.error_code) not in RETRIABLE:
                return answer
            await self.pause(50)

    def _bump_locally(self) -> None:
        self._epoch_ms = self.world.schedule.elapsed_ms
        self._begin_epoch(self.producer_id, self.epoch + 1)
        self.tell("idempotent bump", f"goes on with epoch {self.epoch}")

    def _begin_epoch(self, producer_id: int, epoch: int) -> None:
        """With sequences from 0."""
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences.clear()
        self._written_ms.clear()
        self._sent.clear()

    # -- what may be held against it -----------------------------------------------------------------------------------

    @property
    def superseded(self) -> bool:
        return self.transactional_id is not None and self.world.owner(self.transactional_id) != self.number

    @property
    def late(self) -> bool:
        """Whether the coordinator may have ended its transaction."""
        if self._stained:
            return True
        return self._transaction is not None and self._overdue()

    def _overdue(self) -> bool:
        age = self.world.schedule.elapsed_ms - self._began_ms
        return age > self.world.plan.transaction_timeout_ms * 0.8

    @property
    def transaction_name(self) -> Hashable:
        return self._transaction

    def _refused(
        self,
        api: str,
        code: ErrorCode,
        *,
        late: bool = False,
        again: bool = False,
        batch: Batch | None = None,
        behind: bool = False,
    ) -> None:
        """late: its transaction may have timed out.
        again: an earlier attempt may have been served.
        behind: the broker may not know what the controller decided.
        """
        reason = self.why(code) if batch is None else batch.reason
        self.tell(f"{api} refused: {code.name}", f"{api} is refused with {code.name}: {reason}")
        if not (self.superseded or self.late or late):
            text = f"{self.name}, alone and in time, is told {code.name} by {api}: {reason}"
            place = (self.transactional_id or self.places[0][0], -1) if batch is None else batch.place
            facts = self._facts(api, code, batch)
            if behind and (code in _FENCING or code in _VERIFYING):
                facts |= {Fact.BEHIND}
            if again and self.world.coordinator_changed(self.transactional_id or "", self._epoch_ms):
                facts |= {Fact.FORGOTTEN}
            self.history.report("refusal", *place, text, facts)

    def _facts(self, api: str, code: ErrorCode, batch: Batch | None) -> frozenset[str]:
        """Possible causes of a refusal, as far as this client can see."""
        evidence, since = self.history.evidence, self._epoch_ms
        ended = code in _FENCING or code in _VERIFYING
        name = self.transactional_id or ""
        facts = {
            Fact.LATE_END: self._transaction in evidence.ended,
            Fact.LATE_MARKER: self._transaction in evidence.marked,
            Fact.LATE_INIT: ended and evidence.late_since(name, "InitProducerId", since),
            Fact.LATE_JOIN: (ended or (code == ErrorCode.UNKNOWN_PRODUCER_ID and api in _COORDINATED))
            and self.versions.end_txn < 5
            and any(evidence.late_since(self.name, joining, self._ended_ms) for joining in _JOINING),
            Fact.LATE_WRITE: evidence.late_since(self.name, "Produce", since),
            Fact.EARLY: ended and evidence.early_since(name, self._began_ms),
            Fact.DEPOSED: ended
            and (
                (api in _COORDINATED and self.world.deposed(name, self.answered_by))
                or (self._transaction is not None and self._joined_elsewhere == self._transaction)
            ),
        }
        if batch is not None:
            written = self._written_ms.get(batch.place, since)
            idle = {identity[0] for place, identity in evidence.idle_markers if place == batch.place}
            if code == ErrorCode.INVALID_TXN_STATE and self.producer_id in idle:
                facts[Fact.LATE_MARKER] = True  # it took the verification away that the batch relied on
            facts[Fact.RETRY] = batch.attempts > 1
            facts[Fact.OVERRUN] = sum(s > batch.sequence for s in self._sent.get(batch.place, ())) >= _WINDOW
            facts[Fact.NEW_LEADER] = evidence.led_since(batch.place, written)
            facts[Fact.UNCLEAN] = batch.place in evidence.unclean
        return frozenset(name for name, true in facts.items() if true)

    # -- writing -------------------------------------------------------------------------------------------------------

    def batch(self, place: TopicPartition, count: int, *, origin: str = "") -> Batch:
        """The next batch for a partition; `origin` is the input record that its record comes from."""
        made = [self.history.record(self.name, *place, self._transaction, origin) for _ in range(count)]
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + count
        return Batch(place, made, sequence)

    def _request(self, batch: Batch) -> m.ProduceRequest:
        now = self.world.schedule.now_ms()
        data = records.build_batch(
            [records.Record(i, now, None, record.key.encode(), ()) for i, record in enumerate(batch.records)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=batch.sequence if self.producer_id >= 0 else -1,
            transactional=self.transactional_id is not None,
        )
        return m.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=500,
            topic_data=[
                m.ProduceRequest.TopicProduceData(
                    name=batch.place[0],
                    partition_data=[m.ProduceRequest.PartitionProduceData(index=batch.place[1], records=bytes(data))],
                )
            ],
        )

    async def write(self, batches: Sequence[Batch]) -> None:
        """Have all batches acknowledged, the partitions side by side. Raises Abortable, Fatal."""
        lanes: dict[TopicPartition, list[Batch]] = {}
        for batch in batches:
            lanes.setdefault(batch.place, []).append(batch)
        await gather([spawn(self._lane(place, lane)) for place, lane in lanes.items()])

    async def _lane(self, place: TopicPartition, batches: list[Batch]) -> None:
        retrying = False
        while batches:
            leader = await self.leader(*place)
            self.doing = f"Produce to {place} at {leader}"
            window = batches[: 1 if retrying else _WINDOW]
            answers: list[Deferred[ErrorCode | None]] = []
            for batch in window:
                batch.attempts += 1
                self._sent.setdefault(place, set()).add(batch.sequence)
                self._written_ms.setdefault(batch.place, self.world.schedule.elapsed_ms)
                for record in batch.records:
                    record.sent = True
                answers.append(spawn(self._produce(leader, batch)))
            retrying = False
            for batch, answer in zip(window, answers, strict=True):
                code = await answer
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    if batch is not batches[0]:
                        self.tell("overtaken", f"sequence {batch.sequence} is taken before {batches[0].sequence}")
                    for record in batch.records:
                        record.acknowledged = True
                    batches.remove(batch)
                elif code is None or code in RETRIABLE or (retrying and code in _AFTER_FAILURE):
                    retrying = True
                    hasty = not self.world.closing and self.random.random() < self.world.plan.hasty
                    if batch.attempts > _PATIENCE or hasty:
                        # Its delivery.timeout.ms is over: whether it was written will never be known.
                        self.tell("batch given up", f"gives up sequence {batch.sequence} for {place}")
                        self.lost_leader(*place)
                        raise Abortable(ErrorCode.REQUEST_TIMED_OUT, bump=True)
                elif code in (ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
                    self._refused("Produce", code, batch=batch)
                    raise Fatal(code)
                else:
                    self._refused("Produce", code, batch=batch, behind=leader in self.world.behind)
                    raise Abortable(code, bump=True)
            if retrying:
                self.lost_leader(*place)
                await self.pause(20 + self.random.random() * 80)

    async def _produce(self, leader: int, batch: Batch) -> ErrorCode | None:
        """The code, None when the connection broke."""
        try:
            answer = await self.ask(leader, self._request(batch), self.versions.produce, m.ProduceResponse)
        except Disconnected:
            return None
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        batch.reason = self.why(code)
        self.history.tell(
            f"Produce: {code.name}",
            f"{self.name}: {batch.place[0]}-{batch.place[1]} at {leader}, epoch {self.epoch} sequence {batch.sequence}"
            f" ({len(batch.records)} records from {batch.records[0].key}): {code.name}, offset {result.base_offset}",
        )
        return code

    # -- idempotent ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Produce until the world closes."""
        await self.init()
        while not self.world.closing:
            batches = [
                self.batch(self.random.choice(self.places), self.random.choice((1, 1, 2, 3)))
                for _ in range(self.random.choice((1, 2, 4, 7)))
            ]
            try:
                await self.write(batches)
            except Abortable:
                # Whether the rest was written is not known: it is given up, and what comes next has a new epoch.
                self._bump_locally()
            await self.pause(self.random.random() * self.world.plan.think_ms)

    # -- transactions --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._transaction = f"{self.name}/{len(self.history.outcomes)}"
        self.newest_transaction = self._transaction
        self.history.outcomes[self._transaction] = ABORT
        self._joined.clear()
        self._began_ms = self.world.schedule.elapsed_ms

    async def join(self, places: set[TopicPartition]) -> None:
        """AddPartitionsToTxn, where clients send it. Raises Abortable, Fatal."""
        missing = sorted(places - self._joined)
        if not missing or self.world.plan.client_version >= 2:
            return
        assert self.transactional_id is not None
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in by_topic(missing).items()
            ],
        )
        answer, _ = await self.coordinate(
            "transaction",
            self.transactional_id,
            request,
            self.versions.add_partitions,
            m.AddPartitionsToTxnResponse,
            _worst,
        )
        self._check("AddPartitionsToTxn", ErrorCode(_worst(answer)))
        self._joined.update(missing)
        if self.world.deposed(self.transactional_id, self.answered_by):
            self._joined_elsewhere = self._transaction

    def _check(self, api: str, code: ErrorCode) -> None:
        """Raise the error that the Java client raises for a coordinator's error code."""
        if code == ErrorCode.NONE:
            return
        self._refused(api, code)
        if code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID):
            raise Abortable(code, bump=True)
        if code == ErrorCode.TRANSACTION_ABORTABLE:
            raise Abortable(code, bump=False)
        raise Fatal(code)

    async def end(self, *, commit: bool) -> None:
        """EndTxn. Raises Abortable, Fatal."""
        assert self.transactional_id is not None
        transaction = self._transaction
        if commit:
            self.history.outcomes[transaction] = UNKNOWN
        request = m.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        asked_ms = self.world.schedule.elapsed_ms  # what comes late can be served before the answer is here
        answer, twice = await self.coordinate(
            "transaction", self.transactional_id, request, self.versions.end_txn, m.EndTxnResponse
        )
        code = ErrorCode(answer.error_code)
        word = "commit" if commit else "abort"
        if code == ErrorCode.NONE:
            self.history.outcomes[transaction] = COMMIT if commit else ABORT
            self._stained = not commit and self.late and self.versions.end_txn < 5
        elif commit and not twice:
            self.history.outcomes[transaction] = ABORT
        self.tell(f"EndTxn {word}: {code.name}", f"{word} of {transaction}: {code.name}")
        self._check("EndTxn", code)
        if self.versions.end_txn >= 5:
            if (answer.producer_id, answer.producer_epoch) == (self.producer_id, self.epoch):
                text = f"{self.name}: EndTxn v5 left epoch {self.epoch}"
                self.history.report("epoch-back", self.transactional_id, -1, text)
            self._begin_epoch(answer.producer_id, answer.producer_epoch)
            self._epoch_ms = asked_ms
        self._ended_ms = asked_ms
        self._transaction = None

    async def work(self) -> None:
        """The requests of a transaction before it ends."""
        for _ in range(self.random.choice((1, 1, 2))):
            wanted = self.random.sample(self.places, self.random.randint(1, len(self.places)))
            await self.join(set(wanted))
            batches = [
                self.batch(self.random.choice(wanted), self.random.choice((1, 2)))
                for _ in range(self.random.choice((1, 2, 3)))
            ]
            batches += [self.batch(place, 1) for place in wanted]
            await self.write(batches)
            await self.dawdle()

    async def dawdle(self) -> None:
        """Sometimes wait longer than the transaction timeout."""
        if not self.world.closing and self.random.random() < self.world.plan.dawdle:
            self.tell("dawdles", "dawdles past its transaction timeout")
            await self.pause(self.world.plan.transaction_timeout_ms * (0.5 + self.random.random()))

    async def run_transactions(self) -> None:
        """Transaction after transaction until the world closes, or the producer is fenced."""
        try:
            await self.init()
            while not self.world.closing:
                await self.transaction()
                await self.pause(self.random.random() * self.world.plan.think_ms)
        except Fatal as error:
            self.tell("producer ended", f"ends: {error.code.name}")

    async def transaction(self) -> None:
        """One transaction, aborted when it cannot be committed. Raises Fatal."""
        self.begin()
        transaction = self._transaction
        try:
            await self.work()
            await self.end(commit=self.random.random() >= self.world.plan.abort)
        except Abortable as error:
            self.tell("abortable", f"must abort {transaction}: {error.code.name}")
            await self._abort(error)

    async def _abort(self, error: Abortable) -> None:
        known, late = self.history.outcomes.get(self._transaction, ABORT), self.late
        if error.code != ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            with contextlib.suppress(Abortable):
                await self.end(commit=False)
        late = late or self._overdue()
        self._stained = late and self.versions.end_txn < 5
        if known == UNKNOWN:
            self.history.outcomes[self._transaction] = UNKNOWN
        if self.versions.end_txn < 5 and error.bump:
            await self.init(bump=True, late=late)
        self._ended_ms = self.world.schedule.elapsed_ms
        self._transaction = None


_FENCING = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
_COORDINATED = ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn")
"""What the transaction coordinator is asked."""
_JOINING = ("AddPartitionsToTxn", "AddOffsetsToTxn")
_VERIFYING = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
_AFTER_FAILURE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


def _worst(answer: m.AddPartitionsToTxnResponse) -> int:
    codes = [p.partition_error_code for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition]
    others = [code for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    return others[0] if others else ErrorCode.NONE
