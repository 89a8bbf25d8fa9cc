"""What the live page costs a broker: CPU time of its process for a transaction and for a produce request of one record.

Three brokers take turns: one without the page, one with a page that no browser has open, one whose page is followed.
The order changes with each round. The figures and the shares are medians over the rounds. CPU times
on a machine with other work vary by some ten percent.
"""

from __future__ import annotations

import argparse
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in (".", "protocol", "storage", "tests/support/real_brokers")]

from broker import start_minibroker  # noqa: E402
from targets import cpu_seconds  # noqa: E402
from wire import PRODUCE_VERSION, Connection, create_topic, produce_frame  # noqa: E402

from minibroker.client.transactional import TransactionalClient  # noqa: E402
from minibroker_protocol.records import Record, build_batch  # noqa: E402

TOPIC = "cost"
PLAIN, CLOSED, OPEN = "no page", "page, not open", "page, followed"
IN_FLIGHT = 50
NOW_MS = 1_700_000_000_000


class Broker(NamedTuple):
    pid: int
    client: TransactionalClient
    connection: Connection

    def transactions(self, count: int) -> None:
        """InitProducerId, Produce and EndTxn, with the look-up of the coordinator before each."""
        records = [Record(0, NOW_MS, None, b"v")]
        for _ in range(count):
            producer = self.client.init_producer_id("app", 60_000, transaction_version=2)
            named = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
            batch = build_batch(records, base_sequence=0, transactional=True, **named)
            self.client.produce(producer, TOPIC, 0, bytes(batch))
            self.client.end(producer, commit=True)

    def produces(self, count: int) -> None:
        frame = produce_frame(TOPIC, [100], NOW_MS)
        for _ in range(count // IN_FLIGHT):
            for _ in range(IN_FLIGHT):
                self.connection.send(frame)
            for _ in range(IN_FLIGHT):
                self.connection.receive(PRODUCE_VERSION >= 9)

    def cost(self, work: str, count: int) -> float:
        """µs of CPU for one, of clients that go on for longer: the first thousand after a pause are all recorded."""
        getattr(self, work)(count)
        before = cpu_seconds(self.pid)
        getattr(self, work)(count)
        after = cpu_seconds(self.pid)
        if before is None or after is None:
            raise SystemExit("the kernel does not tell the CPU time of a process")
        return (after - before) / count * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=9_999, help="of the topic; Kafka creates no more at once")
    parser.add_argument("--transactions", type=int, default=500, help="in a turn")
    parser.add_argument("--produces", type=int, default=10_000, help="in a turn")
    options = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="page-cost-")))
        brokers = {
            PLAIN: stack.enter_context(running(place, options.partitions)),
            CLOSED: stack.enter_context(running(place, options.partitions, "--page")),
            OPEN: stack.enter_context(running(place, options.partitions, "--page", followed=True)),
        }
        for work, count in (("transactions", options.transactions), ("produces", options.produces)):
            turns: list[dict[str, float]] = []
            for number in range(options.rounds):
                names = [*brokers]
                order = names[number % 3 :] + names[: number % 3]
                turns.append({name: brokers[name].cost(work, count) for name in order})
            print(f"{work}, CPU of the broker for one:")
            for name in brokers:
                shares = sorted(turn[name] / turn[PLAIN] for turn in turns)
                spread = f"{median(shares):.3f} × ({shares[0]:.2f} to {shares[-1]:.2f})"
                print(f"  {name:15} {median(turn[name] for turn in turns):7.1f} µs  {spread}")
    return 0


@contextmanager
def running(place: Path, partitions: int, *arguments: str, followed: bool = False) -> Iterator[Broker]:
    with ExitStack() as stack:
        started = start_minibroker(place / "broker.log", "--log-level", "warning", *arguments)
        stack.callback(started.stop)
        connection = Connection(started.bootstrap)
        stack.callback(connection.close)
        create_topic(connection, TOPIC, partitions)
        if followed:
            assert started.process.stdout is not None
            page = next(line for line in started.process.stdout if line.startswith("page="))
            stack.enter_context(following(f"{page.removeprefix('page=').strip()}events"))
        yield Broker(started.process.pid, stack.enter_context(TransactionalClient(started.bootstrap)), connection)


@contextmanager
def following(address: str) -> Iterator[None]:
    """Read the page's events as a browser does, until the end."""
    begun, ended = threading.Event(), threading.Event()

    def read() -> None:
        with urllib.request.urlopen(address) as response:
            while not ended.is_set() and response.readline():
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    if not begun.wait(30):
        raise SystemExit(f"{address} sends no events")
    yield
    ended.set()
    reader.join()


if __name__ == "__main__":
    sys.exit(main())
