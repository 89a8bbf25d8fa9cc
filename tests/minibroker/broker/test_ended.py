"""A broker that has ended does nothing later."""

from __future__ import annotations

from memory_cluster import MemoryCluster

from minibroker_protocol import messages as m


def test_no_timer_of_sweeps_or_coordinators_goes_on() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    sweeps = cluster.timers.armed
    for key, key_type in (("job", 1), ("g", 0)):
        cluster.call(m.FindCoordinatorRequest(key=key, key_type=key_type), m.FindCoordinatorResponse, 2)
    init = m.InitProducerIdRequest(transactional_id="job", transaction_timeout_ms=60_000)
    assert cluster.call(init, m.InitProducerIdResponse, 3).error_code == 0
    join = m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    assert cluster.call(join, m.JoinGroupResponse, 2).error_code == 0
    assert 0 < sweeps < cluster.timers.armed
    cluster.stop()
    assert cluster.timers.armed == 0
