"""The plan of an audit, and the steps that are the same in every engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minibroker.rules.rows import Finding, LogFacts, LogFault
from minibroker.rules.scan import RECORDS
from minibroker.rules.txn_rules import DEFAULT_TIMEOUT_MS
from minibroker_pipeline.files import Files, Part
from minibroker_pipeline.folder import Folder
from minibroker_pipeline.headers import Block, FileRows
from minibroker_pipeline.lineage import Lineage
from minibroker_pipeline.reading import read_part
from minibroker_pipeline.topics import Topics

TABLES = ("batches", "runs", "transactions", "findings")
"""The Parquet tables an audit writes, each a directory."""


@dataclass(frozen=True)
class Plan:
    """as_of_ms: when the data was alive; None takes the latest time that a broker wrote down.
    out: a directory for the tables (None: none are written).
    batches: whether the largest of them is wanted.
    findings: what listing the files found.
    """

    files: Files | Topics
    facts: tuple[LogFacts, ...]
    parts: tuple[Part, ...]
    source: str
    depth: str = RECORDS
    as_of_ms: int | None = None
    max_timeout_ms: int = DEFAULT_TIMEOUT_MS
    out: Folder | None = None
    batches: bool = True
    content: bool = False
    lineages: tuple[Lineage, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(part.size for part in self.parts)


class BatchTable:
    """Writes the batches of one task into a Parquet file of its own; a repeated task writes the same file again."""

    def __init__(self, out: Folder, number: int) -> None:
        self._out = out
        self._name = f"batches/part-{number:06d}.parquet"
        self._writer: Any = None

    def take(self, part: Part, block: Block, faults: Sequence[LogFault], origin: int) -> None:
        from minibroker_pipeline.tables import batch_table

        self.write(batch_table(part.facts, part.path, block, faults, origin))

    def write(self, batch: Any) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            system, path = self._out.target(self._name)
            self._writer = pq.ParquetWriter(path, batch.schema, compression="zstd", filesystem=system)
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._out.publish(self._name)


def read_parts(plan: Plan, number: int, parts: Iterable[Part]) -> Iterable[tuple[Part, FileRows]]:
    """Reads the parts of one task, and writes their batches down when that is wanted."""
    table = BatchTable(plan.out, number) if plan.out is not None and plan.batches else None
    for part in parts:
        take = partial(table.take, part) if table is not None else None
        read = read_part(plan.files, part, depth=plan.depth, take=take)
        if table is not None:
            from minibroker_pipeline.tables import fault_batch

            for row in read.rows:
                if isinstance(row, LogFault) and row.rule == "torn-batch":
                    table.write(fault_batch(row))
        yield part, read
    if table is not None:
        table.close()


def write_table(out: Folder, name: str, number: int, rows: Sequence[Any], schema: Any) -> None:
    """Writes rows of one kind as file `number` of a table; nothing when there are none and it is not the first."""
    if not rows and number:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    from minibroker_pipeline.tables import table_of

    file = f"{name}/part-{number:06d}.parquet"
    system, path = out.target(file)
    pq.write_table(pa.Table.from_batches([table_of(rows, schema)]), path, compression="zstd", filesystem=system)
    out.publish(file)
