"""A real Apache Kafka broker (KRaft, one node, loopback) from Maven's jars: the oracle that the tests are held against.

Run as a program it prints `bootstrap.servers=HOST:PORT` and serves until its standard input ends or it is terminated.
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from free_ports import free_ports
from jvm import FAST_START, NEWEST, POMS, java_command

from minibroker.server.temporary_directory import TemporaryDirectory

CLUSTER_ID = "bWluaWJyb2tlci10ZXN0cw"
START_SECONDS = 90.0
STOP_SECONDS = 60.0

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


def is_taken(port: int) -> bool:
    """Whether something takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class PortTaken(Exception):
    """What listens on the port is not this broker, and would be taken for it."""


class NotStarted(RuntimeError):
    """The broker ended, or did not serve within `START_SECONDS`; the text has the end of its log."""


class RealKafka:
    """One broker in a directory of its own, formatted at once; it may be started and stopped many times.

    `extra` is added to server.properties, `{controller_port}` and `{data}` in it filled in; `jvm_options` are chosen
    for a short life unless others are given; `features` are NAME=LEVEL, as for kafka-storage.sh; `release` is one of
    `jvm.POMS`.
    """

    def __init__(
        self,
        extra: str = "",
        port: int | None = None,
        jvm_options: tuple[str, ...] = FAST_START,
        features: tuple[str, ...] = (),
        release: str = NEWEST,
    ) -> None:
        if port is not None and is_taken(port):
            raise PortTaken(f"something listens on port {port} already: choose another with --port, or end it")
        self._temporary = TemporaryDirectory()  # the next broker removes it when this process is killed
        self.directory = Path(self._temporary.path)
        self.process: subprocess.Popen[bytes] | None = None
        free_port, controller_port = free_ports(2)
        self.port, self.controller_port = port or free_port, controller_port
        self._jvm_options = jvm_options
        self.release = release
        self._properties = self.directory / "server.properties"
        data = self.directory / "data"
        self._properties.write_text(
            PROPERTIES.format(port=self.port, controller_port=controller_port, data=data)
            + extra.replace("{controller_port}", str(controller_port)).replace("{data}", str(data))
        )
        self._format(features)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """Command line of the broker."""
        return java_command(
            "kafka.Kafka",
            str(self._properties),
            heap="1g",
            # A killed JVM leaves the native libraries of its codecs there.
            options=(*self._jvm_options, f"-Djava.io.tmpdir={self.directory}"),
            release=self.release,
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Start the broker and return its process, before it serves; see `wait`."""
        with (self.directory / "broker.log").open("ab") as out:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        return self.process

    def wait(self) -> None:
        """Return once the broker's port is open."""
        assert self.process
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if is_taken(self.port):
                return
            time.sleep(0.1)
        self.kill()
        log = (self.directory / "broker.log").read_text(errors="replace")
        raise NotStarted(f"Kafka did not start\n{log[-3000:]}")

    def stop(self) -> None:
        """Stop in good order."""
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """End the broker at once and leave nothing behind."""
        self.kill()
        self._temporary.remove()

    def _format(self, features: tuple[str, ...]) -> None:
        chosen = [word for feature in features for word in ("--feature", feature)]
        arguments = ("format", "-t", CLUSTER_ID, "-c", str(self._properties), *chosen)
        argv = java_command("kafka.tools.StorageTool", *arguments, release=self.release)
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            self._temporary.remove()
            raise RuntimeError(done.stdout + done.stderr)


@contextmanager
def real_kafka(extra: str = "", port: int | None = None, *, release: str = NEWEST) -> Iterator[str]:
    """HOST:PORT of a fresh broker that ends with the block."""
    kafka = RealKafka(extra, port, release=release)
    try:
        kafka.start()
        kafka.wait()
        yield kafka.bootstrap
    finally:
        kafka.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, help="default: a free one")
    parser.add_argument("--release", choices=POMS, default=NEWEST, help="of Apache Kafka (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="line of server.properties")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the broker ends too
    try:
        with real_kafka("\n".join(options.set) + "\n", options.port, release=options.release) as bootstrap:
            print(f"bootstrap.servers={bootstrap}", flush=True)
            with suppress(KeyboardInterrupt):
                sys.stdin.read()
    except PortTaken as error:
        print(f"real_kafka: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
