"""What a Python server can reach: ``python benchmarks/null_server.py [--rounds 5]``.

A server of uvloop that reads nothing of a request and answers a few bytes, beside `minibroker serve`, one record at a
time, in turns. Prints medians over the rounds, in µs: p50 of the time from before a request is sent until its answer is
read, and CPU of the server.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in (".", "protocol", "storage", "tests/support/real_brokers")]

from scenarios import LATENCY_SAMPLES, RECORD_BYTES, connected, first_produce, new_topic, now_ms, produced  # noqa: E402
from targets import MinibrokerTarget, cpu_seconds, end_on_sigterm  # noqa: E402
from wire import Connection, produce_frame  # noqa: E402

SERVER = """
import asyncio, struct, uvloop

class Null(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):  # a request of one record arrives whole
        self.transport.write(struct.pack(">i", 5) + data[8:12] + b"\\0")

async def main():
    server = await asyncio.get_running_loop().create_server(Null, "127.0.0.1", 0)
    print("127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

uvloop.run(main())
"""
Measured = tuple[float, float]
"""(p50, CPU of the server a request), in µs."""


def measure(connection: Connection, frame: bytearray, pid: int, *, decode: bool) -> Measured:
    times = []
    cpu = 0.0
    for number in range(LATENCY_SAMPLES + 100):
        if number == 100:
            cpu = cpu_seconds(pid) or 0.0
        begin = time.perf_counter()
        connection.send(frame)
        if decode:
            produced(connection)
        else:
            connection.receive(True)
        times.append(time.perf_counter() - begin)
    used = (cpu_seconds(pid) or 0.0) - cpu
    return 1e6 * median(times[100:]), 1e6 * used / LATENCY_SAMPLES


def null_server() -> Measured:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        connection = Connection(server.stdout.readline().strip())
        frame = produce_frame("bench", [RECORD_BYTES], now_ms())
        measured = measure(connection, frame, server.pid, decode=False)
        connection.close()
        return measured
    finally:
        server.kill()
        server.communicate()


def minibroker(target: MinibrokerTarget) -> Measured:
    target.start()
    try:
        with connected(target) as connection:
            frame = produce_frame(new_topic(target, connection), [RECORD_BYTES], now_ms())
            first_produce(connection, frame)
            return measure(connection, frame, target.pid, decode=True)
    finally:
        target.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    end_on_sigterm()
    target = MinibrokerTarget()
    try:
        series = [(null_server(), minibroker(target)) for _ in range(rounds)]
    finally:
        target.close()
    for name, values in zip(("null server", "minibroker"), zip(*series, strict=True), strict=True):
        p50, cpu = (median(column) for column in zip(*values, strict=True))
        print(f"{name}: p50 {p50:.0f} µs, CPU {cpu:.0f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
