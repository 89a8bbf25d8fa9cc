"""What a rule has held comes late: after the end, the next start or a pause of its broker, or the end of its topic."""

from __future__ import annotations

from typing import Any

import pytest
from faulty import FaultyCluster, produce_request

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.requests.context import CloseConnection
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol import messages as m
from minibroker_protocol.fields import Buffer

KEEPING: dict[str, dict[str, Any]] = {
    "hold": {},
    "hold the answer": {"name": "hold", "when": "after"},
    "delay": {"ms": 1000},
    "delay the answer": {"name": "delay", "ms": 1000, "when": "after"},
    "reorder": {"within_ms": 1000},
    "duplicate": {"after_ms": 1000},
    "drop_reply": {"close": False},
    "black_hole": {},
}
"""Actions that keep a request, a copy of it or its answer."""


class Channel:
    """Notes what is pushed to the client."""

    def __init__(self) -> None:
        self.pushed: list[bytes] = []

    def push(self, buffers: list[Buffer]) -> None:
        self.pushed.append(b"".join(buffers))


class Late:
    def __init__(self, action: str) -> None:
        self.disk = FaultyDisk()
        self.cluster = FaultyCluster(topics={"t": 1}, disk=self.disk)
        self.channel = Channel()
        self.rule = self.cluster.inject("Produce", {"name": action, **KEEPING[action]}, times=1)
        request = produce_request("t", 0, producer_id=-1, epoch=-1, sequence=-1)
        connection = ConnectionInfo(channel=self.channel)  # type: ignore[arg-type]
        self.answer: Deferred[Any] = self.cluster.send(request, 9, connection=connection)
        self.answered = self.answer.done

    def arrive(self) -> None:
        """All that is held, and a minute."""
        self.rule.release()
        self.cluster.timers.advance(60_000)

    def tells_nothing(self) -> bool:
        """Whether no answer came since it was kept but the end of the connection."""
        if self.answer.done and not self.answered:
            with pytest.raises(CloseConnection):
                self.answer.result()
        return self.channel.pushed == []

    def close(self) -> None:
        self.cluster.commands.close()
        self.cluster.stop()


@pytest.mark.parametrize("action", KEEPING)
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_that_has_ended_neither_writes_nor_answers(end: str, action: str) -> None:
    late = Late(action)
    cluster = late.cluster.cluster
    (cluster.kill_broker if end == "kill" else cluster.stop_broker)(1)
    before = late.disk.calls
    late.arrive()
    assert "\n".join(late.disk.history[before:]) == ""
    assert late.tells_nothing()
    late.close()


@pytest.mark.parametrize("action", KEEPING)
def test_its_next_start_has_what_was_written_before(action: str) -> None:
    late = Late(action)
    written = late.cluster.broker.partition("t", 0).log_end_offset
    late.cluster.cluster.kill_broker(1)
    late.cluster.cluster.start_broker(1)
    late.arrive()
    assert late.cluster.broker.partition("t", 0).log_end_offset == written
    assert late.tells_nothing()
    late.close()


@pytest.mark.parametrize("action", KEEPING)
def test_a_paused_broker_serves_it_when_it_goes_on(action: str) -> None:
    late = Late(action)
    cluster, partition = late.cluster.cluster, late.cluster.broker.partition("t", 0)
    written, before = partition.log_end_offset, late.disk.calls
    cluster.pause_broker(1)
    late.arrive()
    assert "\n".join(late.disk.history[before:]) == ""
    assert late.tells_nothing()
    cluster.resume_broker(1)
    late.arrive()
    assert partition.log_end_offset == written + (action in ("hold", "delay", "reorder", "duplicate"))
    late.close()


@pytest.mark.parametrize("action", KEEPING)
def test_a_deleted_topic_is_not_made_again(action: str) -> None:
    late = Late(action)
    late.cluster.send(m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4, client_id="another")
    late.cluster.timers.advance(10)
    assert "t" not in late.cluster.broker.image.topics
    late.arrive()
    assert [name for name in late.disk.list("") if name.startswith("t-0")] == []
    late.close()


def test_a_rule_has_the_frame_of_a_request_that_waited_for_the_end_of_a_pause() -> None:
    """It is sent twice from its bytes, which belong to the connection again only when the request is over."""
    running = FaultyCluster(topics={"t": 1})
    rule = running.inject("CreatePartitions", {"name": "duplicate"}, times=1)
    running.cluster.pause_broker(1)
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=3, assignments=None)
    answer = running.send(m.CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False), 2)
    assert not answer.done
    running.cluster.resume_broker(1)
    running.timers.advance(10)
    assert rule.hits
    assert [result.name for result in answer.result().results] == ["t"]
    running.commands.close()
    running.stop()
