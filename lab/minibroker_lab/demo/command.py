"""The command `minibroker demo`: arguments, the broker it runs on, and the exit code."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from minibroker.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from minibroker.kernel.arguments import duration, from_1
from minibroker.kernel.extras import hint, missing
from minibroker.kernel.words import fail
from minibroker.output import say
from minibroker.program import uninterrupted, whole

if TYPE_CHECKING:
    from minibroker.kernel.demo_progress import Progress
    from minibroker_lab.demo.story import Story

EXPECTED_FENCED = 1
CLIENTS = ("confluent_kafka", "aiokafka")
# A dead member is noticed after one session timeout, its transaction after one transaction timeout and one sweep.
# Short ones keep the demo short; brokers with Kafka's defaults refuse sessions under 6 s and sweep every 10 s.
OWN_TIMEOUT_MS = 2500
_LAST_SECONDS = 5.0
FOREIGN_TIMEOUT_MS = 6000
OWN_CONFIG = {
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "250",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command, on a parser that the command line hands in."""
    parser.add_argument(
        "--bootstrap", type=_servers, metavar="HOST:PORT", help="run against this broker instead of starting one"
    )
    parser.add_argument(
        "--records", type=from_1, default=2000, help="least number of records to process (default: %(default)s)"
    )
    parser.add_argument(
        "--patience", type=duration, default=45.0, help="maximum seconds per step (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout-ms",
        type=from_1,
        help=f"session and transaction timeout (default: {OWN_TIMEOUT_MS}, {FOREIGN_TIMEOUT_MS} with --bootstrap)",
    )
    parser.add_argument("--seed", type=int, help="seed of the random aborts, to repeat a run")


def run(options: argparse.Namespace) -> int:
    """0 when every record came out exactly once, 1 when not, 2 when the demo cannot run here."""
    if absent := missing(CLIENTS):
        return fail(hint("the demo", *absent), EXIT_USAGE)
    if options.bootstrap and (error := _unreachable(options.bootstrap)):
        return fail(error, EXIT_USAGE, "minibroker demo")
    with _broker(options.bootstrap) as bootstrap:
        return _tell(bootstrap, options)


def _servers(text: str) -> str:
    from minibroker.client.connection import servers

    return servers(text)


def _unreachable(bootstrap: str) -> Exception | None:
    """Why no server accepts a connection, None when one does. A client would retry for ever."""
    from minibroker.client.connection import Connection, NotConnected
    from minibroker.kernel.addresses import parse_address

    error = None
    for server in bootstrap.split(","):
        try:
            Connection(parse_address(server), _LAST_SECONDS).close()
        except NotConnected as failed:
            error = failed
        else:
            return None
    return error


def _remove(bootstrap: str, story: Story) -> None:
    """Delete the demo's topics and group from a broker that keeps running."""
    from minibroker.client.connection import BrokerFailed
    from minibroker_lab.conformance.cluster import ClusterUnderTest
    from minibroker_lab.conformance.traces import remove

    cluster = ClusterUnderTest(bootstrap, timeout=_LAST_SECONDS, patience=_LAST_SECONDS)
    with uninterrupted(), suppress(BrokerFailed):
        remove(cluster, {story.source, story.target}.__contains__, {story.group}.__contains__)


@contextmanager
def _broker(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    from minibroker.testing.embedded import Minibroker

    with whole(Minibroker(ephemeral=True, config=OWN_CONFIG)) as broker:
        yield broker.bootstrap_servers


def _tell(bootstrap: str, options: argparse.Namespace) -> int:
    from minibroker.kernel.demo_progress import Progress
    from minibroker_lab.demo.story import Story, StorySettings

    timeout_ms = options.timeout_ms or (FOREIGN_TIMEOUT_MS if options.bootstrap else OWN_TIMEOUT_MS)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    settings = StorySettings(
        bootstrap=bootstrap,
        minimum=options.records,
        session_timeout_ms=timeout_ms,
        transaction_timeout_ms=timeout_ms,
        patience=options.patience,
        seed=seed,
    )
    progress = Progress(sys.stderr)
    progress.event(f"broker at {bootstrap}, seed {seed}")
    story = Story(settings, progress)
    try:
        return _verdict(bootstrap, story, progress)
    finally:
        story.close()
        if options.bootstrap:
            _remove(bootstrap, story)


def _verdict(bootstrap: str, story: Story, progress: Progress) -> int:
    from confluent_kafka import KafkaException

    from minibroker_lab.demo.story import StoryFailed
    from minibroker_lab.demo.verdict import Unreadable, judge, read_back

    complete = True
    try:
        story.run()
    except (StoryFailed, KafkaException) as failed:
        progress.event(f"broken off: {failed}")
        complete = False
    finally:
        story.close()
    try:
        source, target = read_back(bootstrap, story.source, story.target)
    except Unreadable as failed:
        progress.event(f"the topics cannot be read back: {failed}")
        return EXIT_FAILED
    progress.event("both topics are read back by aiokafka, read_committed")
    verdict = judge(source, target, story.fenced_producers, expected_fenced=EXPECTED_FENCED)
    say(*verdict.lines(), flush=True)
    return EXIT_OK if verdict.exactly_once and complete else EXIT_FAILED
