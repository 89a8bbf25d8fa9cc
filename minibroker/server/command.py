"""The command `minibroker serve`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import os
import sys
import threading
from typing import Any

from minibroker.config.settings import environment_config, parse_assignment
from minibroker.config.types import configured_address
from minibroker.exit_codes import EXIT_FAILED, EXIT_OK
from minibroker.kernel import logs
from minibroker.kernel.addresses import format_address
from minibroker.kernel.logs import get_logger
from minibroker.kernel.words import fail
from minibroker.output import say
from minibroker.releases.chain import RELEASES
from minibroker.server.full_collections import FullCollections
from minibroker.server.options import DEFAULT_HOST, Options, make_options, parse_ports, parse_topic
from minibroker.server.serving import (
    add_life,
    add_token_file,
    control_address,
    control_token,
    run_service,
    running,
    say_control,
)

log = get_logger(__name__)

LOAD_AHEAD_SECONDS = 1.0
_DEFAULT_PORT = "9092"
# What modules of Testcontainers wait for: Java's, Python's with ZooKeeper, Python's with KRaft.
_KAFKA_LINES = (
    "[KafkaServer id={id}] Transitioning from RECOVERY to RUNNING",
    "[KafkaServer id={id}] started",
    "Kafka Server started",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        default=_DEFAULT_PORT,
        metavar="PORT[,PORT…]",
        help="port of the first broker, the others take the next ones; 0 for free ones (default: %(default)s)",
    )
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="brokers in the cluster (default: 1)")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="keep data in DIR (default: a temporary directory, removed at exit)"
    )
    parser.add_argument("--ephemeral", action="store_true", help="keep data in memory only, up to a limit")
    parser.add_argument("--semantics", default="kafka", metavar="NAME", help="kafka (default) or kip")
    parser.add_argument("--transaction-version", type=int, metavar="V", help="0, 1 or 2 (default: the semantics' own)")
    parser.add_argument("--as-version", metavar="V", help=f"answer as this release of Kafka did: {', '.join(RELEASES)}")
    parser.add_argument(
        "--not-yet", action="store_true", help="tell clients to wait and ask again wherever Kafka does (default: off)"
    )
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME:PARTITIONS", help="create this topic if it is missing"
    )
    parser.add_argument(
        "-c", "--config", action="append", default=[], metavar="KEY=VALUE", help="set one of Kafka's settings"
    )
    parser.add_argument(
        "--setup",
        metavar="FILE",
        help="begin with the topics, users, ACLs, fault rules and clock of this TOML file",
    )
    parser.add_argument(
        "--control", metavar="HOST:PORT", help="serve the control API: faults, clock, state (default: off)"
    )
    add_token_file(parser)
    parser.add_argument(
        "--page", action="store_true", help="show transactions, groups and requests live in a browser (default: off)"
    )
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Kafka's metrics in Prometheus' format (default: off)"
    )
    # The image's run script: what else waits for a container of Kafka looks for lines of its log.
    parser.add_argument("--like-kafka-image", action="store_true", help=argparse.SUPPRESS)
    add_life(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal arrives. Exit status: 0 after a clean shutdown, 1 if the broker could not start, 2 for an
    invalid configuration."""
    gc.disable()  # until it serves, see _settled
    try:
        from minibroker.server.service import Service

        return run_service(arguments, lambda: Service(_options(arguments)), _serve)
    finally:
        gc.enable()


def _options(arguments: argparse.Namespace) -> Options:
    config, warnings = environment_config(os.environ)
    for warning in warnings:
        log.warning("%s", warning)
    config.update(parse_assignment(text) for text in arguments.config)
    ports = parse_ports(arguments.port)
    metrics = None
    if arguments.metrics:
        metrics = configured_address(arguments.metrics, "the address of the metrics")
    return make_options(
        host=arguments.host,
        brokers=arguments.brokers,
        port=ports[0],
        ports=ports if len(ports) > 1 else None,
        data_dir=arguments.data_dir,
        ephemeral=arguments.ephemeral,
        semantics=arguments.semantics,
        transaction_version=arguments.transaction_version,
        as_version=arguments.as_version,
        topics=dict(parse_topic(text) for text in arguments.topic),
        config=config,
        not_yet=arguments.not_yet,
        control=control_address(arguments),
        control_token=control_token(arguments.control_token_file),
        metrics=metrics,
        page=arguments.page,
        setup=arguments.setup,
    )


async def _serve(service: Any, arguments: argparse.Namespace) -> int:
    async with running(service, arguments) as stopping:
        _say_where(service, arguments)
        loop = asyncio.get_running_loop()
        collections = _settled(loop)
        loading = loop.call_later(LOAD_AHEAD_SECONDS, _load_ahead)
        service.cluster.on_failure = stopping.set
        try:
            await stopping.wait()
        finally:
            loading.cancel()
            collections.stop()
        failure = service.cluster.failure
    return EXIT_OK if failure is None else fail(f"the metadata journal failed: {failure.message}", EXIT_FAILED)


def _say_where(service: Any, arguments: argparse.Namespace) -> None:
    # In a container 127.0.0.1 is reachable from inside only.
    servers = service.outside_servers if arguments.like_kafka_image else service.bootstrap_servers
    say(f"bootstrap.servers={servers}")
    say_control(service)
    if service.metrics is not None:
        say(f"metrics={format_address(*service.metrics.address)}")
    if arguments.like_kafka_image:
        say(*(line.format(id=service.cluster.nodes[0].node_id) for line in _KAFKA_LINES))
    sys.stdout.flush()


def _load_ahead() -> None:
    """Import what the first request to a coordinator and the first log line would load, 20 to 100 ms, on a thread.

    Not at once: a broker that lives for one test may need none of it.
    """

    def load() -> None:
        with contextlib.suppress(OSError):  # out of file descriptors; who needs them says so
            for name in (
                "minibroker.coordinator_runtime.transaction_service",
                "minibroker.coordinator_runtime.group_service",
            ):
                importlib.import_module(name)
            logs.load_ahead()

    threading.Thread(target=load, name="minibroker-load-ahead", daemon=True).start()


def _settled(loop: asyncio.AbstractEventLoop) -> FullCollections:
    """Exclude imported objects from garbage collections, and avoid full collections while clients wait."""
    gc.enable()
    collections = FullCollections(loop.call_later)
    collections.start()
    return collections
