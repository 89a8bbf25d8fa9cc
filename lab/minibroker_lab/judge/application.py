"""What an application did with its transactions and offsets, as the wire shows it: the mistake behind a finding, and
mistakes that show even where nothing was lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from minibroker.rules.rows import COMMIT, CommittedOffset, Finding, Log, Transaction
from minibroker.rules.rules import finding
from minibroker_lab.judge.exchanges import Exchange, Produced
from minibroker_lab.judge.lineage import Lineage
from minibroker_lab.judge.stored import Stored

OFFSET_COMMITS = ("OffsetCommit", "TxnOffsetCommit")
_OFFSET_STEPS = ("AddOffsetsToTxn", "TxnOffsetCommit")
_WAIT = "CONCURRENT_TRANSACTIONS"
_FENCED = ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
_OLD_MEMBER = ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH")
_NOWHERE = Log("", "", -1)


class OffsetRow(NamedTuple):
    """An offset that a request committed."""

    exchange: Exchange
    group: str
    topic: str
    partition: int
    offset: int


KeptOffset = tuple[int, str, str, int, int]
"""Producer id, group, topic, partition and offset of a commit in a transaction that the log shows as committed."""


def kept_offsets(commits: Iterable[CommittedOffset], transactions: Iterable[Transaction]) -> set[KeptOffset]:
    """transactions: those in the logs of `__consumer_offsets`; others do no harm."""
    committed: dict[tuple[Log, int], list[Transaction]] = defaultdict(list)
    for transaction in transactions:
        if transaction.outcome == COMMIT:
            committed[transaction.log, transaction.producer_id].append(transaction)
    return {
        (row.producer_id, row.group, row.topic, row.partition, row.committed)
        for row in commits
        if any(t.first_offset <= row.offset <= t.last_offset for t in committed[row.log, row.producer_id])
    }


class Wire:
    """The exchanges of a run as transactions and offsets.

    topic_names: by topic id as exchanges have it.
    unapplied: numbers of exchanges that a failure kept from being applied.
    kept: the offsets that the log shows as committed, for transactions whose end has no answer in the trace.
    """

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        produced: Sequence[Produced] = (),
        topic_names: Mapping[str, str] = {},
        unapplied: Collection[int] = (),
        kept: Collection[KeptOffset] = (),
    ) -> None:
        self.exchanges, self.produced = exchanges, produced
        self._names, self._kept = topic_names, kept
        self._ends: dict[tuple[int, int], list[Exchange]] = defaultdict(list)
        for exchange in exchanges:
            if exchange["api"] == "EndTxn" and not exchange["errors"] and exchange["number"] not in unapplied:
                self._ends[producer(exchange)].append(exchange)

    def name(self, topic: Mapping[str, Any]) -> str:
        """Of a topic that a request has by its name or its id."""
        return topic_name(topic, self._names)

    def end(self, who: tuple[int, int], number: int) -> Exchange | None:
        """The EndTxn with which a producer id and epoch ended the transaction that it had at this exchange."""
        return next((end for end in self._ends.get(who, ()) if end["number"] > number), None)

    def is_kept(self, commit: Exchange) -> bool:
        """Whether the log shows an offset of a TxnOffsetCommit as committed, whatever its answer was."""
        return any((producer(commit)[0], *row[1:]) in self._kept for row in self._rows(commit))

    def _rows(self, exchange: Exchange) -> Iterator[OffsetRow]:
        for topic in exchange["request"]["topics"]:
            for row in topic["partitions"]:
                place = self.name(topic), row["partition_index"], row["committed_offset"]
                yield OffsetRow(exchange, exchange["request"].get("group_id", ""), *place)

    def offsets(self) -> Iterator[OffsetRow]:
        """Every offset that was committed: in a transaction if that was committed."""
        explained = {
            (producer(exchange)[0], *row[1:])
            for exchange in self.exchanges
            if exchange["api"] == "TxnOffsetCommit" and self.own_commit(exchange)
            for row in self._rows(exchange)
        }
        for exchange in self.exchanges:
            if exchange["api"] not in OFFSET_COMMITS or exchange["outcome"] != "answered" or exchange["errors"]:
                continue
            plain = exchange["api"] == "OffsetCommit"
            end = None if plain else self.own_commit(exchange)
            for row in self._rows(exchange):
                kept = (producer(exchange)[0], *row[1:])
                # Without its answer in the trace, an EndTxn may have come too late and been refused.
                answered = end is not None and end["response"] is not None
                others = end is None and kept not in explained
                if plain or answered or (kept in self._kept and (end is not None or others)):
                    yield row

    def is_taken_along(self, commit: Exchange) -> bool:
        """Whether a TxnOffsetCommit was committed, and by no EndTxn of its transaction: by a late one of an earlier
        transaction. An error that a script put in place of the answer does not say that its own was not applied."""
        if commit["api"] != "TxnOffsetCommit" or self.own_commit(commit) is not None or not self.is_kept(commit):
            return False
        who, number = producer(commit), commit["number"]
        later = [e for e in self.exchanges if e["api"] == "EndTxn" and e["number"] > number and producer(e) == who]
        return not any(end["request"]["committed"] and end["errors"] and end["fault"] for end in later)

    def own_commit(self, commit: Exchange) -> Exchange | None:
        """The EndTxn that committed the transaction of a TxnOffsetCommit."""
        end = self.end(producer(commit), commit["number"])
        return end if end is not None and end["request"]["committed"] else None


def topic_name(topic: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Of a topic that a request has by its name or its id; empty where `names` has not the id."""
    return str(topic.get("name") or topic.get("topic") or names.get(topic.get("topic_id", ""), ""))


def producer(exchange: Exchange) -> tuple[int, int]:
    """Producer id and epoch of a request, -1 where it has none."""
    request = exchange["request"]
    prefix = "" if "producer_id" in request else "v3_and_below_"
    return request.get(f"{prefix}producer_id", -1), request.get(f"{prefix}producer_epoch", -1)


class _Turn(NamedTuple):
    """An instance that took a transactional id."""

    number: int
    producer_id: int
    epoch: int


def shared_ids(wire: Wire) -> Iterator[tuple[Finding, Exchange]]:
    """`shared-id`: two instances that both live took one transactional id in turns. One that is fenced is no mistake,
    it may be left over; its successor is no leftover, and was fenced too."""
    turns: dict[str, list[_Turn]] = defaultdict(list)
    waits: dict[str, list[int]] = defaultdict(list)
    refused: dict[str, dict[int, Exchange]] = defaultdict(dict)
    batches = {id(sent.exchange): sent.batch[:2] for sent in wire.produced}
    for exchange in wire.exchanges:
        request, response = exchange["request"] or {}, exchange["response"]
        name = request.get("transactional_id") or request.get("v3_and_below_transactional_id")
        if not name:
            continue
        if exchange["api"] == "InitProducerId":
            if response and request.get("producer_id", -1) < 0:
                waits[name] += [exchange["number"]] if all(_WAIT in error for error in exchange["errors"]) else []
                if not exchange["errors"]:
                    turns[name].append(_Turn(exchange["number"], response["producer_id"], response["producer_epoch"]))
        elif not exchange["fault"] and any(code in error for error in exchange["errors"] for code in _FENCED):
            at = _turn(turns[name], batches.get(id(exchange)) or producer(exchange))
            if at is not None:
                refused[name].setdefault(at, exchange)
    for name, first_refusals in refused.items():
        # Fenced by another instance: its InitProducerId came before the refusal. After a timeout it comes afterwards.
        by_turn = {
            at: refusal
            for at, refusal in first_refusals.items()
            if any(turns[name][at].number < number < refusal["number"] for number in waits[name])
        }
        again = [at for at in sorted(by_turn) if at - 1 in by_turn]
        if again:
            text = (
                f"two instances have the transactional id {name!r} at once: {len(by_turn)} times one was fenced by "
                "another, which was fenced in its turn"
            )
            yield finding("shared-id", _NOWHERE, text, transactional_id=name), by_turn[again[0]]


def _turn(turns: Sequence[_Turn], who: tuple[int, int]) -> int | None:
    """Whose turn a producer id and epoch belong to; ending a transaction may raise the epoch within it."""
    own = [at for at, turn in enumerate(turns) if turn.producer_id == who[0] and turn.epoch <= who[1]]
    return own[-1] if own else None


def unfenced_offsets(wire: Wire) -> Iterator[Finding]:
    """`offsets-without-member`: TxnOffsetCommit without a member while its group has members."""
    members: dict[str, set[str]] = defaultdict(set)
    seen: set[str] = set()
    for exchange in wire.exchanges:
        request, group = exchange["request"] or {}, (exchange["request"] or {}).get("group_id", "")
        if exchange["errors"] or not group:
            continue
        if exchange["api"] in ("SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat"):
            leaves = request.get("member_epoch", 0) < 0
            (members[group].discard if leaves else members[group].add)(request.get("member_id", ""))
        elif exchange["api"] == "LeaveGroup":
            leaving = {member["member_id"] for member in request.get("members") or [request]}
            members[group] -= leaving
        elif (
            exchange["api"] == "TxnOffsetCommit"
            and not request.get("member_id")
            and group not in seen
            and members[group]
        ):
            seen.add(group)
            text = (
                f"offsets of group {group} are committed without naming a member (exchange {exchange['number']}), "
                "though it has members: those of one that lost its partitions are taken too (KIP-447)"
            )
            yield finding("offsets-without-member", _NOWHERE, text)


def repeated_offsets(wire: Wire) -> Iterator[Finding]:
    """`offsets-twice`: two committed transactions that wrote records committed the same offset."""
    wrote = {id(wire.end(sent.batch[:2], sent.exchange["number"])) for sent in wire.produced if sent.transactional}
    committed: dict[tuple[str, str, int, int], dict[int, Exchange]] = defaultdict(dict)
    for row in wire.offsets():
        if row.exchange["api"] != "TxnOffsetCommit":
            continue
        end = wire.end(producer(row.exchange), row.exchange["number"])
        if end is None or id(end) not in wrote:
            continue
        by_end = committed[row[1:]]
        if by_end and id(end) not in by_end:
            first = next(iter(by_end.values()))
            text = (
                f"two transactions committed offset {row.offset} of group {row.group} (exchanges {first['number']} and "
                f"{row.exchange['number']}): the same input was worked on twice"
            )
            yield finding("offsets-twice", Log("", row.topic, row.partition), text)
        by_end.setdefault(id(end), row.exchange)


def mixed_offsets(wire: Wire) -> Iterator[Finding]:
    """`offsets-mixed`: a member commits offsets plainly after a transaction committed some of the same group and
    partition, as a rebalance listener does that commits positions. Before the first transaction a commit is where to
    begin; one without a member may be a tool's. Each partition of a group once. This alone breaks no promise, as a
    member may skip inputs without an output in this way. Records that are lost or doubled break `lineage-lost` or
    `lineage-duplicate`.
    """
    transactional: dict[tuple[str, str, int], OffsetRow] = {}
    seen: set[tuple[str, str, int]] = set()
    for row in wire.offsets():
        place = row[1:4]
        if row.exchange["api"] == "TxnOffsetCommit":
            transactional[place] = row
        elif place in transactional and place not in seen and row.exchange["request"].get("member_id"):
            seen.add(place)
            before = transactional[place]
            text = (
                f"offset {row.offset} of group {row.group} is committed outside of any transaction (exchange "
                f"{row.exchange['number']}), after a transaction committed offset {before.offset} (exchange "
                f"{before.exchange['number']}): no abort takes it back with the output, as when a rebalance listener "
                "or enable.auto.commit commits positions"
            )
            yield finding("offsets-mixed", Log("", row.topic, row.partition), text)


def uncommitted_inputs(wire: Wire) -> Iterator[Finding]:
    """`input-uncommitted`: a topic whose offsets a transaction committed is read with read_uncommitted only."""
    partitions = {row.topic: row.partition for row in wire.offsets() if row.exchange["api"] == "TxnOffsetCommit"}
    for topic, partition in sorted(partitions.items()):
        fetches = list(_fetches(wire, topic))
        if fetches and not any(_isolation(fetch) for fetch in fetches):
            text = (
                f"read with isolation.level read_uncommitted (exchange {fetches[0]['number']}), and a "
                "transaction commits its offsets: records of aborted transactions would be input too"
            )
            yield finding("input-uncommitted", Log("", topic, partition), text)


def _fetches(wire: Wire, topic: str) -> Iterator[Exchange]:
    for exchange in wire.exchanges:
        topics = (exchange["request"] or {}).get("topics") or () if exchange["api"] == "Fetch" else ()
        if any(wire.name(fetched) == topic for fetched in topics):
            yield exchange


def _isolation(fetch: Exchange) -> int:
    """0 is read_uncommitted."""
    return int(fetch["request"].get("isolation_level", 1))


class Causes:
    """The mistake behind a finding about an application's lineage, as half a sentence; empty where nothing shows it."""

    def __init__(self, wire: Wire, stored: Sequence[Stored], lineages: Sequence[Lineage]) -> None:
        self._wire, self._lineages = wire, lineages
        self._stored = {(row.topic, row.partition, row.record.offset): row for row in stored}
        self._committed = [row for row in stored if row.committed]

    def of(self, finding: Finding, exchange: Exchange | None) -> str:
        """exchange: the one that broke the promise."""
        row = self._stored.get((finding.log.topic, finding.log.partition, finding.first_offset))
        explain = {"lineage-lost": self._lost, "lineage-duplicate": self._duplicate, "lineage-stray": self._stray}
        if row is None or finding.rule not in explain:
            return ""
        said = (explain[finding.rule](lineage, row, exchange) for lineage in self._lineages)
        return next(filter(None, said), "")

    def _lost(self, lineage: Lineage, row: Stored, commit: Exchange | None) -> str:
        if row.topic != lineage.source:
            return ""
        past = commit if commit is not None and commit["api"] in OFFSET_COMMITS else None
        if past is not None and self._wire.is_taken_along(past):
            return f"its offset was committed ({_place(past)}) by a late EndTxn of an earlier transaction (KIP-890)"
        tries = self._tries(lineage, row)
        if past is not None:
            tries = [sent for sent in tries if sent.exchange["number"] < past["number"]]
        if not tries:
            # Without an offset past it the input was not read yet.
            if past is None:
                return ""
            dropped = "; it has no value: a tombstone that is dropped" if row.record.value is None else ""
            return f"its offset was committed ({_place(past)}) before anything was written for it{dropped}"
        sent = tries[-1]
        end = self._wire.end(sent.batch[:2], sent.exchange["number"]) if sent.transactional else None
        if sent.exchange["errors"]:
            what = f"its Produce was refused (exchange {sent.exchange['number']}: {_code(sent.exchange)})"
        elif end is not None and not end["request"]["committed"]:
            why = self._refused_offsets(sent, end)
            what = f"the transaction that wrote it was aborted (exchange {end['number']}){why}"
        else:
            what = f"what was written for it (exchange {sent.exchange['number']}) was never committed"
        if past is None:
            return f"{what}, and the command ended without another try"
        how = _place(past)
        if past["api"] == "OffsetCommit":
            outside = " outside of any transaction" if sent.transactional else ""
            return f"{what}, and its offset was committed all the same{outside} ({how})"
        return f"{what}, the consumer was not set back, and a later transaction committed an offset past it ({how})"

    def last_try(self, finding: Finding) -> Exchange | None:
        """The last Produce of the output of an input that is lost."""
        row = self._stored.get((finding.log.topic, finding.log.partition, finding.first_offset))
        own = [lineage for lineage in self._lineages if row is not None and row.topic == lineage.source]
        tries = [sent.exchange for lineage in own if row is not None for sent in self._tries(lineage, row)]
        return tries[-1] if tries else None

    def _tries(self, lineage: Lineage, row: Stored) -> list[Produced]:
        """What was sent for an input."""
        keys = set(lineage.of_input(row.topic, row.partition, row.record))
        return [sent for sent in self._wire.produced if sent.topic == lineage.target and _has(lineage, sent, keys)]

    def _duplicate(self, lineage: Lineage, row: Stored, _: Exchange | None) -> str:
        if row.topic != lineage.target:
            return ""
        keys = set(lineage.of_output(row.record))
        copies = [
            copy for copy in self._committed if copy.topic == row.topic and keys & {*lineage.of_output(copy.record)}
        ]
        written = [next((p for p in self._wire.produced if _wrote(p, copy)), None) for copy in copies]
        # In the order in which they were sent: copies may be in several partitions.
        sent = sorted((p for p in written if p is not None), key=lambda p: p.exchange["number"])
        first, again = (sent[0], sent[1]) if len(sent) > 1 else (None, None)
        if first is None or again is None or first is again or not (first.transactional and again.transactional):
            return ""
        names = [produced.exchange["request"]["transactional_id"] for produced in (first, again)]
        if names[0] != names[1]:
            return (
                f"they were written under two transactional ids, {names[0]!r} and {names[1]!r}: "
                "a new one does not end what the old one began"
            )
        end = self._wire.end(first.batch[:2], first.exchange["number"])
        if end is None:
            return ""
        rows = [offsets for offsets in self._wire.offsets() if offsets.topic == lineage.source]
        transactional = [offsets for offsets in rows if offsets.exchange["api"] == "TxnOffsetCommit"]
        own = [o for o in transactional if self._wire.end(producer(o.exchange), o.exchange["number"]) is end]
        outside = next((offsets.exchange for offsets in rows if offsets.exchange["api"] == "OffsetCommit"), None)
        why = "" if own else self._without_offsets(first, end, outside)
        if why:
            return f"the transaction that wrote the first one (exchange {end['number']} ended it) has no offsets: {why}"
        inputs = {
            (place.partition, place.record.offset)
            for place in self._committed
            if place.topic == lineage.source and keys & {*lineage.of_input(place.topic, place.partition, place.record)}
        }
        why = self._offsets_of_others(own, {partition for partition, _ in inputs}, again, transactional)
        if why:
            return f"the transaction that wrote the first one (exchange {end['number']} ended it) has {why}"
        own = [offsets for offsets in own if offsets.partition in {partition for partition, _ in inputs}]
        if len(inputs) == 1 and own:
            ((partition, offset),) = inputs
            if own[-1].offset <= offset:
                return (
                    f"the first one's transaction committed offset {own[-1].offset} (exchange "
                    f"{own[-1].exchange['number']}), which is not past {lineage.source}-{partition}@{offset}: the "
                    "offset to commit is that of the next record"
                )
        lost = " and its answer was lost" if end["outcome"] != "answered" else ""
        return (
            f"the first one was committed (exchange {end['number']}{lost}), and the same input was sent again in "
            f"another transaction (exchange {again.exchange['number']})"
        )

    def _offsets_of_others(
        self, own: Sequence[OffsetRow], inputs: Collection[int], again: Produced, transactional: Sequence[OffsetRow]
    ) -> str:
        """What offsets a transaction has instead of those of its input; empty where it has these.

        own: its offsets. inputs: the partitions of the input. again: the batch that has the same input once more.
        transactional: the offsets of all transactions.
        """
        here = [offsets for offsets in own if offsets.partition in inputs]
        if own and inputs and not here:
            other = own[0]
            places = ", ".join(f"{other.topic}-{partition}" for partition in sorted(inputs))
            return (
                f"no offset of {places}, only of {other.topic}-{other.partition}: two loops share one producer, or one "
                "partition's offset is sent for all"
            )
        end = self._wire.end(again.batch[:2], again.exchange["number"])
        later = [o for o in transactional if end and self._wire.end(producer(o.exchange), o.exchange["number"]) is end]
        groups = {offsets.group for offsets in later if offsets.partition in inputs}
        if here and groups and not groups & {offsets.group for offsets in here}:
            return f"no offsets of group {min(groups)}, only of {here[0].group}: two loops share one producer"
        return ""

    def _without_offsets(self, sent: Produced, end: Exchange, outside: Exchange | None) -> str:
        """Why the transaction of a batch has no offsets; empty where it may have some."""
        if outside is not None:
            return f"they are committed outside of it (exchange {outside['number']}, OffsetCommit)"
        steps = self._offset_steps(sent, end)
        if not steps:
            return "none were sent"
        if any(e["api"] == "TxnOffsetCommit" and self._wire.is_kept(e) for e in steps):
            return ""
        refused = next((f": {_code(e)}" for e in reversed(steps) if e["errors"]), "")
        return f"they were not written ({_place(steps[-1])}{refused}), and it was committed all the same"

    def _refused_offsets(self, sent: Produced, end: Exchange) -> str:
        """That the last offsets of the transaction of a batch were refused, to append; empty where they were not."""
        steps = [e for e in self._offset_steps(sent, end) if e["api"] == "TxnOffsetCommit"]
        if not steps or not steps[-1]["errors"]:
            return ""
        old = ": the group metadata is that of before a rebalance" if _code(steps[-1]) in _OLD_MEMBER else ""
        return f" after its offsets were refused (exchange {steps[-1]['number']}: {_code(steps[-1])}){old}"

    def _offset_steps(self, sent: Produced, end: Exchange) -> list[Exchange]:
        """What was sent about offsets in the transaction of a batch."""
        own = [e for e in self._wire.exchanges if e["number"] < end["number"] and producer(e) == sent.batch[:2]]
        begun = max((e["number"] for e in own if e["api"] == "EndTxn" and not e["errors"]), default=0)
        return [e for e in own if e["api"] in _OFFSET_STEPS and e["number"] > begun]

    def _stray(self, lineage: Lineage, row: Stored, _: Exchange | None) -> str:
        if row.topic != lineage.target:
            return ""
        for fetch in _fetches(self._wire, lineage.source):
            if not _isolation(fetch):
                return f"the input is read with isolation.level read_uncommitted (exchange {fetch['number']})"
        return ""


def _has(lineage: Lineage, sent: Produced, keys: set[str]) -> bool:
    return any(keys & set(lineage.of_output(record)) for record in sent.records)


def _wrote(sent: Produced, row: Stored) -> bool:
    return (sent.topic, sent.partition, sent.batch) == (row.topic, row.partition, row.batch)


def _place(exchange: Exchange) -> str:
    return f"exchange {exchange['number']}, {exchange['api']}"


def _code(exchange: Exchange) -> str:
    errors: Iterable[str] = exchange["errors"]
    return next(iter(errors)).partition(" ")[0]
