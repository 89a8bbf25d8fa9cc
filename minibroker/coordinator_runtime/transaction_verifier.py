"""Asks the transaction coordinator whether partitions are in a transaction, or to add them (KIP-890).

The partition leader's side: Kafka's AddPartitionsToTxnManager, and ReplicaManager's handling of its answers.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from minibroker.coordinator_runtime.ports import CoordinatingBroker
from minibroker.coordinator_runtime.transaction_service import TransactionService
from minibroker.coordinator_runtime.transactional_write import Write
from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TopicPartition, by_topic
from minibroker.coordinators.transactions.refusals import TIMED_OUT_FOR_LEADERS
from minibroker.kernel.deferred import Deferred, mapped, resolved, spawn
from minibroker.kernel.logs import get_logger
from minibroker.kernel.transport import call
from minibroker.kernel.waiting import sleep
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker_protocol.dsl import Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

log = get_logger(__name__)

ADD_PARTITIONS_VERSION: Final = 5
_RETRY_BACKOFF: Final = "add.partitions.to.txn.retry.backoff.ms"
_RETRY_MAX: Final = "add.partitions.to.txn.retry.backoff.max.ms"

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

Codes = dict[TopicPartition, ErrorCode]


class SupportedOperation(Enum):
    """What the client's request version supports (Kafka's TransactionSupportedOperation)."""

    DEFAULT_ERROR = "default error"
    GENERIC_ERROR = "generic error"
    ADD_PARTITION = "add partition"

    @classmethod
    def of_produce(cls, api_version: int) -> SupportedOperation:
        return cls.ADD_PARTITION if api_version >= 12 else cls.GENERIC_ERROR if api_version == 11 else cls.DEFAULT_ERROR

    @classmethod
    def of_txn_offset_commit(cls, api_version: int) -> SupportedOperation:
        return cls.ADD_PARTITION if api_version >= 5 else cls.GENERIC_ERROR if api_version == 4 else cls.DEFAULT_ERROR


def _message(write: Write, *, verify_only: bool) -> _Transaction:
    return _Transaction(
        transactional_id=write.transactional_id,
        producer_id=write.producer_id,
        producer_epoch=write.producer_epoch,
        verify_only=verify_only,
        topics=[_Topic(name=name, partitions=indexes) for name, indexes in by_topic(write.partitions).items()],
    )


_COORDINATOR_UNREACHABLE: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class _Verification:
    """One transaction whose verification is queued or in flight."""

    __slots__ = ("answer", "operation", "transaction")

    def __init__(self, transaction: _Transaction, operation: SupportedOperation) -> None:
        self.transaction = transaction
        self.operation = operation
        self.answer: Deferred[Codes] = Deferred()

    def fail(self, code: ErrorCode) -> None:
        partitions = [(t.name, i) for t in self.transaction.topics for i in t.partitions]
        self.answer.resolve(dict.fromkeys(partitions, code))


class TransactionVerifier:
    """At most one request to each coordinator is in flight; further verifications are batched into the next one."""

    def __init__(self, broker: CoordinatingBroker, transactions: TransactionService) -> None:
        self._broker = broker
        self._transactions = transactions
        self._busy: set[int] = set()
        self._waiting: dict[int, dict[str, _Verification]] = {}
        self._closed = False

    def close(self) -> None:
        """Answer NETWORK_EXCEPTION to all callers whose request was not sent yet."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for verification in [v for node in waiting.values() for v in node.values()]:
            verification.fail(ErrorCode.NETWORK_EXCEPTION)

    # -- for Produce and TxnOffsetCommit ---------------------------------------------------------------------------

    def verify(self, write: Write, api_version: int) -> Deferred[Codes]:
        """For Produce in `api_version`: partition → code of the response, NONE where the append may go on.

        Below v12 partitions are looked up, from v12 on they join the transaction. v12+ waits up to
        add.partitions.to.txn.retry.backoff.max.ms (real time) for the transaction before this one to complete.
        """
        operation = SupportedOperation.of_produce(api_version)
        first = self.ask(write, operation)
        if first.done and not any(first.result().values()):
            return first
        return spawn(self._verify_patiently(first, write, operation))

    def verify_offset_commit(self, write: Write, api_version: int) -> Deferred[ErrorCode]:
        """For TxnOffsetCommit in `api_version`, about the group's partition of ``__consumer_offsets``."""
        (partition,) = write.partitions
        verification = self.ask(write, SupportedOperation.of_txn_offset_commit(api_version))
        return mapped(verification, lambda codes: codes.get(partition, ErrorCode.NONE))

    async def code_of_timed_out(self, write: Write, api_key: int, api_version: int) -> ErrorCode | None:
        """The error for a stale epoch in Produce or TxnOffsetCommit if the coordinator ended its transaction because of
        the timeout, and no producer has the next epoch yet. None: the usual error; also if the coordinator cannot be
        asked.

        write: of any existing partition.
        """
        code = self._broker.semantics.timed_out_code(api_key, api_version)
        if code is None:
            return None
        timed_out = await self._has_timed_out(write)
        return ErrorCode(code) if timed_out else None

    @staticmethod
    def timed_out(code: ErrorCode, refusal: ApiError) -> ApiError:
        """`refusal` of a stale epoch with the code that its timeout has."""
        return ApiError(code, f"the transaction has timed out: {refusal.message}")

    async def _has_timed_out(self, write: Write) -> bool:
        node_id = self._broker.coordinator_of(TRANSACTION_STATE_TOPIC, write.transactional_id)
        if node_id is None:
            return False
        request = AddPartitionsToTxnRequest(transactions=[_message(write, verify_only=True)])
        try:
            response = await call(
                self._broker.transport, node_id, request, ADD_PARTITIONS_VERSION, AddPartitionsToTxnResponse
            )
        except ApiError:
            return False
        codes = [
            partition.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        ]
        return codes == [TIMED_OUT_FOR_LEADERS]

    async def _verify_patiently(self, first: Deferred[Codes], write: Write, operation: SupportedOperation) -> Codes:
        codes = await first
        if operation is SupportedOperation.ADD_PARTITION:
            backoff_ms = self._broker.settings.get_int(_RETRY_BACKOFF)
            left_ms = self._broker.settings.get_int(_RETRY_MAX)
            while ErrorCode.CONCURRENT_TRANSACTIONS in codes.values() and left_ms > 0:
                await sleep(self._broker.timers, backoff_ms)
                left_ms -= backoff_ms
                codes = await self.ask(write, operation)
        return _for_produce(codes, operation)

    # -- asking ----------------------------------------------------------------------------------------------------

    def ask(self, write: Write, operation: SupportedOperation) -> Deferred[Codes]:
        """Partition → the coordinator's error code, with fenced epochs as INVALID_PRODUCER_EPOCH."""
        node_id = self._broker.coordinator_of(TRANSACTION_STATE_TOPIC, write.transactional_id)
        if node_id == self._broker.node_id and operation is not SupportedOperation.ADD_PARTITION and not self._busy:
            codes = self._look_up_here(write)
            if codes is not None:
                return resolved(codes)
        verification = _Verification(
            _message(write, verify_only=operation is not SupportedOperation.ADD_PARTITION), operation
        )
        if node_id is None:
            verification.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif self._closed:
            verification.fail(ErrorCode.NETWORK_EXCEPTION)
        elif node_id in self._busy:
            self._queue(node_id, verification)
        else:
            self._send(node_id, {write.transactional_id: verification})
        return verification.answer

    def _look_up_here(self, write: Write) -> Codes | None:
        """The answer of this broker's own coordinator if it agrees. It saves the request, which is half the cost of a
        verification. None: it does not agree, and a request must get the reason."""
        if self._closed or not self._broker.transport.direct:
            return None
        try:
            codes = self._transactions.verify_partitions(
                write.transactional_id, ProducerIdAndEpoch(write.producer_id, write.producer_epoch), write.partitions
            )
        except ApiError:
            return None
        return None if any(codes.values()) else codes

    def _queue(self, node_id: int, verification: _Verification) -> None:
        """One entry per transactional id: a newer request of an epoch displaces the older one, a lower epoch fails."""
        waiting = self._waiting.setdefault(node_id, {})
        transaction = verification.transaction
        queued = waiting.get(transaction.transactional_id)
        if queued is not None and queued.transaction.producer_epoch > transaction.producer_epoch:
            verification.fail(ErrorCode.INVALID_PRODUCER_EPOCH)
            return
        waiting[transaction.transactional_id] = verification
        if queued is not None:
            same_epoch = queued.transaction.producer_epoch == transaction.producer_epoch
            queued.fail(ErrorCode.NETWORK_EXCEPTION if same_epoch else ErrorCode.INVALID_PRODUCER_EPOCH)

    def _send(self, node_id: int, batch: dict[str, _Verification]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[verification.transaction for verification in batch.values()])
        self._busy.add(node_id)
        answer = self._broker.transport.send(node_id, request, ADD_PARTITIONS_VERSION)
        answer.then(lambda done: self._answered(node_id, batch, done))

    def _answered(self, node_id: int, batch: dict[str, _Verification], answer: Deferred[Response]) -> None:
        self._busy.discard(node_id)
        following = self._waiting.pop(node_id, None)
        if following:
            self._send(node_id, following)
        try:
            response = answer.result()
        except Exception as error:  # every caller gets an answer
            log.warning("the transaction coordinator on broker %d did not answer: %s", node_id, error)
            code = error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
            for verification in batch.values():
                verification.fail(_failed_call(code))
            return
        assert isinstance(response, AddPartitionsToTxnResponse)
        if response.error_code != ErrorCode.NONE:
            for verification in batch.values():
                verification.fail(_failed_call(ErrorCode(response.error_code)))
            return
        for result in response.results_by_transaction:
            answered = batch.pop(result.transactional_id, None)
            if answered is not None:
                answered.answer.resolve(
                    {
                        (topic.name, partition.partition_index): _code(
                            partition.partition_error_code, answered.operation
                        )
                        for topic in result.topic_results
                        for partition in topic.results_by_partition
                    }
                )
        for verification in batch.values():
            verification.fail(ErrorCode.UNKNOWN_SERVER_ERROR)


def _failed_call(code: ErrorCode) -> ErrorCode:
    # The brokers of one cluster trust each other; a refusal means a wrong set-up (AddPartitionsToTxnManager).
    return ErrorCode.INVALID_TXN_STATE if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else code


def _code(code: int, operation: SupportedOperation) -> ErrorCode:
    if code in (ErrorCode.PRODUCER_FENCED, TIMED_OUT_FOR_LEADERS):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and operation is SupportedOperation.DEFAULT_ERROR:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode(code)


def _for_produce(codes: Codes, operation: SupportedOperation) -> Codes:
    """Clients retry Produce on NOT_ENOUGH_REPLICAS, and do not know the coordinator's own errors there."""
    return {
        partition: ErrorCode.NOT_ENOUGH_REPLICAS
        if code in _COORDINATOR_UNREACHABLE
        or (code is ErrorCode.CONCURRENT_TRANSACTIONS and operation is not SupportedOperation.ADD_PARTITION)
        else code
        for partition, code in codes.items()
    }
