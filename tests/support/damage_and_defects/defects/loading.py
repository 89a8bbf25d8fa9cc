"""Defects of what a broker writes for its next start, and of how it reads that."""

from __future__ import annotations

from typing import Final

from defects.defect import Defect

_TXN_RECORDS: Final = "minibroker.coordinators.transactions.records:record_of"

LOADING: Final = (
    Defect(
        "start-forgets-producers",
        "a start takes the producers of a partition from its snapshot",
        "minibroker_storage.snapshots:SnapshotFiles.load_latest",
        "producers.load_snapshot(self._disk.read_bytes(path), offset, now_ms, remembered=remembered, path=path)",
        "producers.clear(offset)",
    ),
    Defect(
        "start-forgets-aborted-transactions",
        "a start takes the aborted transactions of a segment from its index",
        "minibroker_storage.txn_index:TxnIndex.decode",
        "index.append(AbortedTxn(producer_id, first, last, stable))",
        "pass",
    ),
    Defect(
        "last-epoch-not-logged",
        "the last epoch is in the transaction log",
        _TXN_RECORDS,
        "if with_last_epoch:",
        "if False:",
    ),
    Defect(
        "epoch-not-logged",
        "the epoch of a producer is in the transaction log",
        _TXN_RECORDS,
        "producer_epoch=metadata.producer_epoch,",
        "producer_epoch=0,",
    ),
    Defect(
        "partitions-not-logged",
        "the partitions of a transaction are in the transaction log",
        _TXN_RECORDS,
        "metadata.state is EMPTY",
        "True",
    ),
    Defect(
        "start-commits-pending-offsets",
        "offsets of a transaction are pending after a start too",
        "minibroker.coordinator_runtime.coordinator_host:CoordinatorHost._replay_batch",
        "transactional=header.is_transactional",
        "transactional=False",
    ),
    Defect(
        "start-forgets-generation",
        "a group that is loaded has its generation",
        "minibroker.coordinators.groups.classic.group:ClassicGroup.from_value",
        "group.generation_id = value.generation",
        "group.generation_id = 0",
    ),
)
