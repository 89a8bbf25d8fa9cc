"""What `minibroker proxy` costs, in turns beside a direct connection to the same Kafka.

``PYTHONPATH=tests/support/real_brokers python benchmarks/proxy_cost.py [--bootstrap HOST:PORT]``; without an address a
real Kafka 4.4.0 is started. Prints for each measure: direct, through the proxy, and how they compare.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from minibroker.client.cluster import ClusterClient
from minibroker.client.connection import Connection
from minibroker.kernel.addresses import Address
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.headers import encode_request
from minibroker_protocol.records import Record, build_batch

TOPIC = "proxy-cost"
PRODUCE, FETCH, FETCH_WITH_ADDRESSES = 9, 12, 17
ROUNDS = 9
SMALL = 300
"""Requests of a round, one after the other."""
LARGE = 40
IN_FLIGHT = 5
MEGABYTE = 1_000_000
WAIT_SECONDS = 30.0


@contextlib.contextmanager
def kafka(bootstrap: str | None) -> Iterator[str]:
    if bootstrap is not None:
        yield bootstrap
        return
    from real_kafka import real_kafka

    with real_kafka("message.max.bytes=4000000\n") as started:
        yield started


@contextlib.contextmanager
def proxy(upstream: str, *options: str) -> Iterator[tuple[str, int]]:
    """Its address and its process id."""
    command = [sys.executable, "-m", "minibroker", "proxy", "--upstream", upstream, "--until-stdin-closes"]
    command += ["--log-level", "warning", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip().partition("=")[2], process.pid
        process.communicate()


def produce(records: bytes) -> m.ProduceRequest:
    part = m.ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = m.ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[part])
    return m.ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic])


def fetch(topic_id: bytes, offset: int) -> m.FetchRequest:
    part = m.FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MEGABYTE)
    topic = m.FetchRequest.FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[part])
    return m.FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=MEGABYTE, topics=[topic], session_epoch=-1)


def one_by_one(connection: Connection, request: Request, version: int, times: int) -> list[float]:
    """Seconds that each of `times` requests took."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        connection.ask(request, version, "cost", WAIT_SECONDS)
        taken.append(time.perf_counter() - began)
    return taken


def in_flight(connection: Connection, request: Request, version: int, times: int) -> float:
    """Seconds for `times` requests, of which IN_FLIGHT wait for their answers at a time, as a producer has them."""
    frame = encode_request(request, version, 1, "cost")
    began = time.perf_counter()
    for number in range(times):
        connection.send_frame(frame)
        if number >= IN_FLIGHT:
            connection.receive(WAIT_SECONDS)
    for _ in range(min(IN_FLIGHT, times)):
        connection.receive(WAIT_SECONDS)
    return time.perf_counter() - began


def in_turns(ways: list[Connection], work: Callable[[Connection], float]) -> list[float]:
    """The median of ROUNDS for each way; who is first changes with the round."""
    found: list[list[float]] = [[] for _ in ways]
    for turn in range(ROUNDS):
        order = list(enumerate(ways))
        for number, way in order if turn % 2 else reversed(order):
            found[number].append(work(way))
    return [statistics.median(each) for each in found]


def measure(direct: Address, through: Address) -> None:
    batch = build_batch([Record(value=b"v" * 100)])
    megabyte = build_batch([Record(value=os.urandom(MEGABYTE - 200))])
    with Connection(direct, WAIT_SECONDS) as one, Connection(through, WAIT_SECONDS) as other:
        ways = [one, other]
        for way in ways:  # code that runs for the first time is slow on both sides
            one_by_one(way, produce(batch), PRODUCE, SMALL)
            one_by_one(way, produce(megabyte), PRODUCE, 3)
        small = in_turns(ways, lambda way: statistics.median(one_by_one(way, produce(batch), PRODUCE, SMALL)))
        say("Produce of 100 bytes, p50", small, 1e6, "µs", slower=True)
        large = in_turns(ways, lambda way: LARGE / sum(one_by_one(way, produce(megabyte), PRODUCE, LARGE)))
        say("Produce of a megabyte", large, 1, "MB/s")
        flight = in_turns(ways, lambda way: LARGE / in_flight(way, produce(megabyte), PRODUCE, LARGE))
        say("the same, five in flight", flight, 1, "MB/s")
        with ClusterClient(f"{direct[0]}:{direct[1]}") as client:
            where = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
            asked = m.ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[where])
            request = m.ListOffsetsRequest(replica_id=-1, topics=[asked])
            end = client.ask(direct, request, m.ListOffsetsResponse, 5).topics[0].partitions[0].offset
            topic_id = client.metadata([TOPIC]).topics[0].topic_id
        for version in (FETCH, FETCH_WITH_ADDRESSES):
            work = partial(fetch_rate, fetch(topic_id, end - 1), version)
            say(f"Fetch v{version} of a megabyte", in_turns(ways, work), 1, "MB/s")


def fetch_rate(request: m.FetchRequest, version: int, way: Connection) -> float:
    return LARGE / sum(one_by_one(way, request, version, LARGE))


def say(what: str, found: list[float], factor: float, unit: str, *, slower: bool = False) -> None:
    direct, through = (each * factor for each in found)
    print(f"{what:28} direct {direct:8.1f} {unit}   proxy {through:8.1f} {unit}   x {through / direct:.2f}", flush=True)


def memory(address: Address, pid: int, connections: int) -> None:
    """Resident megabytes of the proxy before and with many idle connections."""
    before = resident(pid)
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            one = stack.enter_context(Connection(address, WAIT_SECONDS))
            one.ask(m.ApiVersionsRequest(), 0, "cost", WAIT_SECONDS)
        print(f"{connections} connections: {before:.0f} MB before, {resident(pid):.0f} MB with them", flush=True)


def resident(pid: int) -> float:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker to stand in front of")
    parser.add_argument("--connections", type=int, default=1000)
    options = parser.parse_args()
    with kafka(options.bootstrap) as upstream:
        with ClusterClient(upstream) as client:
            wanted = m.CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
            client.ask(client.controller(), m.CreateTopicsRequest(topics=[wanted]), m.CreateTopicsResponse, 5)
            client.patiently(lambda: client.leader(TOPIC, 0))
            leader = client.leader(TOPIC, 0)
        with proxy(upstream) as (servers, pid), ClusterClient(servers) as client:
            through = client.leader(TOPIC, 0)
            measure(leader, through)
            memory(through, pid, options.connections)


if __name__ == "__main__":
    main()
