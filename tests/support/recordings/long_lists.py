"""How long lists are answered, for every API and every list, as digests of the answers' bytes.

`python tests/support long_lists COUNT [API …]` writes those of `tests/golden/long-lists.json` anew. An answer that
differs is one that slicing has changed: an element lost, answered twice or in another place.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from large_requests import PARTITIONS, large_request, places, twice
from memory_cluster import MemoryCluster

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.requests.api import Api
from minibroker.requests.context import CloseConnection
from minibroker.security.create_authorizer import STANDARD
from minibroker_protocol import messages as m
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.structs import Struct

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "long-lists.json"
SOME, ALL = 300, 20_000
"""Elements of the lists of the default tests, and of the whole."""
GUARDED = "guarded"
FORMS = ("once", "twice", "one-topic", GUARDED)
"""once: distinct elements. twice: all of them, and all again. one-topic: as many partitions of one topic, where the
list is of those. guarded: nothing is allowed to the client."""

_MOST_AT_ONCE = 9_000
"""Partitions that one request may create; in a longer list the rest do not exist."""

Place = tuple[Api, tuple[str, ...]]


def named_places() -> dict[str, Place]:
    return {f"{api.name}.{'.'.join(path)}": (api, path) for api, path in places()}


def forms_of(place: Place) -> list[str]:
    """The forms that a list can have."""
    _, path = place
    of_partitions = len(path) > 1 and "partition" in path[-1]
    return [form for form in FORMS if of_partitions or form != "one-topic"]


def answer(place: Place, form: str, count: int) -> list[Any]:
    """Digest and size of the answer's bytes; the reason instead where the connection is closed."""
    api, path = place
    partitions = count if form == "one-topic" else PARTITIONS
    config = {"unstable.api.versions.enable": "true", "message.max.bytes": str(64 << 20)}
    if form == GUARDED:
        config["authorizer.class.name"] = STANDARD
    cluster = MemoryCluster(config, topics={"t": min(partitions, _MOST_AT_ONCE)})
    try:
        if form != GUARDED:
            _begin(cluster)
        request, version = large_request(api, path, count, "t", partitions)
        _name_topic(request, cluster.broker.image.topics["t"].topic_id)
        if form == "twice":
            request = twice(request, path)
        frame = cluster.frame(request, version)
        try:
            buffers = _settled(cluster, cluster.dispatcher.dispatch(frame, ConnectionInfo()))
        except CloseConnection as error:
            return ["closed", str(error)]
    finally:
        cluster.stop()
    data = b"".join(map(bytes, buffers or ()))
    return [sha256(data).hexdigest()[:16], len(data)]


def _name_topic(struct: Any, topic_id: bytes) -> None:
    """Give the first topic of each list, which has no id yet, that of "t", and partitions a batch to be written."""
    if isinstance(struct, m.ProduceRequest):
        struct.acks, struct.transactional_id, struct.timeout_ms = 1, None, 1000
    for field in struct.__fields__:
        value = getattr(struct, field.name)
        if field.name == "topic_id" and value == NO_ID:
            struct.topic_id = topic_id
        elif field.records:
            struct.records = build_batch([Record(0, 1_700_000_000_000, None, b"v")])
        for inner in value[:2] if isinstance(value, list) else (value,):
            if isinstance(inner, Struct):
                _name_topic(inner, topic_id)


def _settled(cluster: MemoryCluster, pending: Any) -> Any:
    if isinstance(pending, Deferred):
        for _ in range(20):
            if pending.done:
                return pending.result()
            cluster.timers.advance(1000)
        raise AssertionError("there is no answer")
    return pending


def _begin(cluster: MemoryCluster) -> None:
    """Something of each kind that requests ask about: committed offsets, transactional ids, records of a producer."""
    for kind in (0, 1):
        find = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=["g"])
        _settled(cluster, cluster.send(find, 4))
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition
    offsets = [partition(partition_index=i, committed_offset=i, committed_metadata="") for i in range(0, PARTITIONS, 3)]
    for group in ("group_id0", "groups0", "groups2", "groups_names1"):
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=offsets)
        commit = m.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic])
        _settled(cluster, cluster.send(commit, 8))
    for name in ("transactional_ids0", "transactional_ids2", "transactional_id0"):
        init = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        _settled(cluster, cluster.send(init, 4))


def answers(place: Place, count: int) -> dict[str, list[Any]]:
    """All forms of one list."""
    return {form: answer(place, form, count) for form in forms_of(place)}


def recorded() -> dict[str, Any]:
    """Place → count → form → what `answer` gave."""
    golden: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    return golden


def main(count: int, *apis: str) -> None:
    golden = recorded()
    for name, place in named_places().items():
        if not apis or place[0].name in apis:
            golden.setdefault(name, {})[str(count)] = answers(place, count)
            lines = ",\n".join(f"{json.dumps(each)}: {json.dumps(golden[each])}" for each in golden)
            GOLDEN.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
