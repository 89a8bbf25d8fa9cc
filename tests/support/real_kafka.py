"""A real Apache Kafka broker (KRaft, one node, loopback) from Maven's jars: the oracle that the tests are held against.

Run as a program it prints `bootstrap.servers=HOST:PORT` and serves until it is interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jvm import java_command

CLUSTER_ID = "bWluaWJyb2tlci10ZXN0cw"
START_SECONDS = 90.0

# Replication factors of one, or a single broker refuses transactions and groups; no wait before a first rebalance.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def free_ports(count: int) -> list[int]:
    """Ports nobody listened on a moment ago; Kafka cannot tell which port it got, so it has to be told one."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def format_storage(directory: Path, port: int, controller_port: int, extra: str) -> Path:
    properties = directory / "server.properties"
    text = PROPERTIES.format(port=port, controller_port=controller_port, data=directory / "data")
    properties.write_text(text + extra)
    argv = java_command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return properties


def wait_until_served(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    process.kill()
    process.wait()
    raise RuntimeError(f"Kafka did not start\n{log.read_text(errors='replace')[-3000:]}")


@contextmanager
def real_kafka(extra: str = "", port: int | None = None, heap: str = "768m") -> Iterator[str]:
    """Format and start a broker in a directory of its own, yield HOST:PORT, and leave nothing behind."""
    directory = Path(tempfile.mkdtemp(prefix="real-kafka-"))
    broker_port, controller_port = free_ports(2)
    broker_port = port or broker_port
    log = directory / "broker.log"
    try:
        properties = format_storage(directory, broker_port, controller_port, extra)
        with log.open("wb") as out:
            process = subprocess.Popen(
                java_command("kafka.Kafka", str(properties), heap=heap),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            wait_until_served(process, broker_port, log)
            yield f"127.0.0.1:{broker_port}"
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, help="default: a free one")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="line of server.properties")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the broker ends too
    with real_kafka("\n".join(options.set) + "\n", options.port) as bootstrap:
        print(f"bootstrap.servers={bootstrap}", flush=True)
        try:
            sys.stdin.read()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
