"""Brokers of a running `Minibroker` come and go with their ports and connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minibroker import Minibroker
from minibroker_protocol.errors import ApiError, ErrorCode

CONFIG = {
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "replica.fetch.backoff.ms": "50",
}


@pytest.fixture
def broker() -> Iterator[Minibroker]:
    with Minibroker(brokers=3, topics={"t": 3}, config=CONFIG, ephemeral=True) as running:
        yield running


def address(broker: Minibroker, node_id: int) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.split(",")[node_id - 1].rpartition(":")
    return host, int(port)


def eventually(reached: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["stop_broker", "kill_broker"])
def test_a_broker_that_ends_takes_its_connections_and_its_port(broker: Minibroker, how: str) -> None:
    ended, other = (socket.create_connection(address(broker, node), 60) for node in (2, 1))
    with ended, other:
        getattr(broker.cluster, how)(2)
        ended.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert ended.recv(1) == b""
        with pytest.raises(OSError):
            socket.create_connection(address(broker, 2), 60).close()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)
    assert broker.cluster.broker_ids == [1, 3]
    broker.cluster.start_broker(2)
    socket.create_connection(address(broker, 2), 60).close()
    eventually(lambda: broker.cluster.isr("t", 0) == [1, 2, 3])


def test_leaders_are_spread_and_move(broker: Minibroker) -> None:
    assert sorted(broker.cluster.leader("t", index) or 0 for index in range(3)) == [1, 2, 3]
    to = (broker.cluster.leader("t") or 0) % 3 + 1
    broker.cluster.move_leader("t", 0, to)
    assert broker.cluster.leader("t") == to
    broker.cluster.reassign("t", 0, [to])
    assert broker.cluster.isr("t") == [to]


def test_a_new_broker_takes_a_replica_and_leaves_again(broker: Minibroker) -> None:
    added = broker.cluster.add_broker()
    assert added == 4
    broker.cluster.reassign("t", 0, [4])
    assert broker.cluster.leader("t") == 4
    broker.cluster.reassign("t", 0, [1, 2])
    broker.cluster.remove_broker(4)
    assert broker.cluster.broker_ids == [1, 2, 3]
    with pytest.raises(ApiError):
        broker.cluster.start_broker(4)


def test_brokers_keep_directories_of_their_own(tmp_path: Path) -> None:
    with Minibroker(
        brokers=2, topics={"t": 2}, config={**CONFIG, "default.replication.factor": "2"}, data_dir=str(tmp_path)
    ) as first:
        first.cluster.kill_broker(1)
        first.cluster.start_broker(1)
        eventually(lambda: first.cluster.isr("t", 0) == [1, 2])
        leaders = [first.cluster.leader("t", index) for index in range(2)]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"broker1", "broker2"}
    with Minibroker(brokers=2, data_dir=str(tmp_path)) as again:
        assert [again.cluster.leader("t", index) for index in range(2)] == leaders


def test_brokers_are_out_of_reach_when_nothing_runs_here() -> None:
    stopped = Minibroker(brokers=2)
    with pytest.raises(RuntimeError, match="only while they run in this process"):
        _ = stopped.cluster


def test_a_broken_link_and_a_missing_controller_by_name() -> None:
    """As HTTP and the command line have them: a broker that the controller does not hear is fenced, once there is a
    controller, and serves again when it is heard."""
    config = {**CONFIG, "broker.heartbeat.interval.ms": "100", "broker.session.timeout.ms": "500"}
    with Minibroker(brokers=3, topics={"t": 1}, config=config, ephemeral=True) as broker:
        leader = broker.cluster.leader("t")
        assert leader is not None
        with pytest.raises(ApiError):
            broker.state.cut_link(one=leader, other=9)
        broker.state.stop_controller()
        with pytest.raises(ApiError) as nobody:
            broker.state.move_leader(topic="t", partition=0, to=leader % 3 + 1)
        assert nobody.value.code == ErrorCode.NOT_CONTROLLER
        broker.state.cut_link(one=leader, other=-1)
        time.sleep(1)
        assert broker.cluster.leader("t") == leader
        broker.state.start_controller()
        eventually(lambda: broker.cluster.leader("t") not in (None, leader))
        broker.state.mend_link(one=-1, other=leader)
        eventually(lambda: broker.cluster.isr("t") == [1, 2, 3])


@pytest.mark.parametrize("uvloop", ["true", "false"])
def test_the_port_of_a_broker_that_is_away_is_nobody_elses(uvloop: str) -> None:
    if uvloop == "true":
        pytest.importorskip("uvloop")
    with Minibroker(brokers=2, ephemeral=True, config={"minibroker.uvloop": uvloop}) as broker:
        host, port = address(broker, 2)
        broker.cluster.stop_broker(2)

        def held() -> bool:
            with socket.socket() as other:
                try:
                    other.bind((host, port))
                except OSError:
                    return True
                return False

        eventually(held)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), 60).close()
        broker.cluster.start_broker(2)
        with socket.create_connection((host, port), 60) as client:
            client.settimeout(20)
            client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))  # ApiVersions v0
            assert client.recv(1) == b"\0"
            broker.cluster.remove_broker(2)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            eventually(lambda: bound(other, (host, port)))


def bound(free: socket.socket, where: tuple[str, int]) -> bool:
    try:
        free.bind(where)
    except OSError:
        return False
    return True
