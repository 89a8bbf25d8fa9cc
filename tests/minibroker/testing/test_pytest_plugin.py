"""The plugin in pytest runs of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = "minibroker.testing.pytest_plugin"
SEARCHED = os.pathsep.join(path for path in sys.path if path)
ARGUMENTS = ("-p", PLUGIN, "-p", "no:cacheprovider", "-q")
Runs = Callable[..., pytest.RunResult]
"""(source, *arguments) → what a run of pytest ended with."""


@pytest.fixture(autouse=True)
def _plain_runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTHONPATH", SEARCHED)


@pytest.fixture(scope="module")
def process_of_runs() -> Iterator[subprocess.Popen[str] | None]:
    """What all runs import is imported once: that takes longer than most runs."""
    if not hasattr(os, "fork"):
        yield None
        return
    program = [sys.executable, str(ROOT / "tests" / "support" / "applications" / "pytest_runs.py")]
    environment = {**os.environ, "PYTHONPATH": SEARCHED}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        yield process


@pytest.fixture
def run(pytester: pytest.Pytester, process_of_runs: subprocess.Popen[str] | None) -> Runs:
    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        if process_of_runs is None:
            return pytester.runpytest_subprocess(*ARGUMENTS, *arguments, timeout=60)
        assert process_of_runs.stdin
        assert process_of_runs.stdout
        folder, begun = pytester.path, time.perf_counter()
        arguments = (f"--basetemp={folder / 'temporary'}", *ARGUMENTS, *arguments)
        asked = {"folder": str(folder), "arguments": arguments, "environment": dict(os.environ)}
        print(json.dumps(asked), file=process_of_runs.stdin, flush=True)
        code = int(process_of_runs.stdout.readline())
        stdout, stderr = ((folder / name).read_text("utf-8") for name in ("stdout", "stderr"))
        print(stdout)
        print(stderr, file=sys.stderr)
        return pytest.RunResult(code, stdout.splitlines(), stderr.splitlines(), time.perf_counter() - begun)

    return run


def test_a_broker_a_topic_and_names_without_configuration(run: Runs) -> None:
    result = run(
        """
        names = []

        def test_one(minibroker, bootstrap_servers, unique_topic, unique_group, unique_transactional_id):
            assert bootstrap_servers == minibroker.bootstrap_servers
            assert unique_topic in minibroker.control.describe()["topics"]
            names.extend([minibroker.bootstrap_servers, unique_topic, unique_group, unique_transactional_id])

        def test_two(minibroker, unique_topic, unique_group, unique_transactional_id):
            again = [minibroker.bootstrap_servers, unique_topic, unique_group, unique_transactional_id]
            assert again[0] == names[0]
            assert not set(again[1:]) & set(names[1:])
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_proxy_in_front_of_another_cluster(run: Runs) -> None:
    from minibroker import Minibroker

    source = """
        import pytest
        from minibroker.client.cluster import ClusterClient

        @pytest.mark.minibroker(faults=[{"api": "Metadata", "action": "close", "nth": 2}])
        def test_one(minibroker_proxy, bootstrap_servers, unique_topic):
            assert bootstrap_servers == minibroker_proxy.bootstrap_servers
            with ClusterClient(bootstrap_servers) as client:
                assert unique_topic in {topic.name for topic in client.metadata(None).topics}
                client.metadata([])
    """
    with Minibroker(ephemeral=True, record=100) as upstream:
        run(source, "--minibroker-upstream", upstream.bootstrap_servers).assert_outcomes(passed=1)
        assert upstream.requests("CreateTopics")
        assert not [one for one in upstream.requests() if one.outcome.startswith("closed")]


def test_marker_and_options_choose_the_broker(run: Runs) -> None:
    result = run(
        """
        import pytest

        @pytest.mark.minibroker(brokers=2, config={"transaction.max.timeout.ms": "5000"})
        def test_two_brokers(minibroker):
            assert minibroker.control.describe()["brokers"] == [1, 2]
            setting = minibroker.cluster.run(lambda c: c.settings.get_int("transaction.max.timeout.ms"))
            assert setting == 5000

        def test_of_the_command_line(minibroker):
            assert minibroker.cluster.run(lambda c: c.semantics.name) == "kip"
            assert minibroker.control.describe()["brokers"] == [1]

        def test_cluster(minibroker_cluster, bootstrap_servers, unique_topic):
            assert minibroker_cluster.control.describe()["brokers"] == [1, 2, 3]
            assert bootstrap_servers == minibroker_cluster.bootstrap_servers

        @pytest.mark.minibroker(not_yet=True)
        def test_not_yet(minibroker):
            assert minibroker.cluster.run(lambda c: c.settings.get_boolean("minibroker.not.yet.answers"))

        @pytest.mark.minibroker(broker=2)
        def test_typing_error(minibroker):
            pass
        """,
        "--minibroker-semantics=kip",
    )
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*the marker minibroker has no 'broker', did you mean brokers?*"])


@pytest.mark.matrix
def test_a_release_is_chosen_by_marker_or_option(run: Runs) -> None:
    result = run(
        """
        import pytest

        def advertises(minibroker):
            return minibroker.cluster.run(lambda c: c.image.feature("transaction.version"))

        def test_of_the_command_line(minibroker):
            assert advertises(minibroker) == 0

        @pytest.mark.minibroker(as_version="4.0")
        def test_of_the_marker(minibroker):
            assert advertises(minibroker) == 2
        """,
        "--minibroker-as-version=3.9",
    )
    result.assert_outcomes(passed=2)


@pytest.mark.matrix
def test_fixtures_of_the_session_are_the_brokers_of_the_tests(run: Runs) -> None:
    result = run(
        """
        import pytest

        @pytest.fixture(scope="session")
        def seeded(minibroker_session, minibroker_cluster_session):
            minibroker_session.state.create_topic(topic="seeded")
            return minibroker_session, minibroker_cluster_session

        def test_one(seeded, minibroker):
            assert seeded[0] is minibroker
            assert "seeded" in minibroker.control.describe()["topics"]

        def test_two(seeded, minibroker_cluster):
            assert seeded[1] is minibroker_cluster
            assert minibroker_cluster.control.describe()["brokers"] == [1, 2, 3]
        """,
    )
    result.assert_outcomes(passed=2)


@pytest.mark.matrix
def test_a_fault_of_the_command_line_acts_in_every_test_and_fails_none(run: Runs) -> None:
    pytest.importorskip("confluent_kafka")
    result = run(
        """
        def test_idle(minibroker):
            assert [rule["rule"]["api"] for rule in minibroker.faults.list()] == [["Produce"]]

        def test_sends(minibroker, confluent_producer, unique_topic):
            producer = confluent_producer({"enable.idempotence": True})
            producer.produce(unique_topic, b"x")
            assert producer.flush(20) == 0
            assert [rule["fired"] for rule in minibroker.faults.list()] == [1]
        """,
        '--minibroker-fault={"api": "Produce", "action": "drop_reply"}',
    )
    result.assert_outcomes(passed=2)
    wrong = run("def test_any(minibroker): pass", "--minibroker-fault=drop")
    wrong.stdout.fnmatch_lines(["*--minibroker-fault takes JSON*"])


@pytest.mark.matrix
def test_coroutines_under_a_plugin_that_runs_them(run: Runs) -> None:
    pytest.importorskip("aiokafka")
    pytest.importorskip("pytest_asyncio")
    result = run(
        """
        import pytest

        @pytest.mark.asyncio
        async def test_sends(minibroker, aiokafka_producer, unique_topic):
            fault = minibroker.faults.inject("Produce", "close", topic=unique_topic)
            async with aiokafka_producer(enable_idempotence=True) as producer:
                sent = await producer.send_and_wait(unique_topic, b"x")
                await fault.wait_async()
            assert sent.offset == 0
        """,
        "-p",
        "pytest_asyncio.plugin",
    )
    result.assert_outcomes(passed=1)


def test_a_fault_that_never_acts_fails_its_test_and_no_other(run: Runs) -> None:
    result = run(
        """
        import pytest

        def test_unfired(minibroker):
            minibroker.faults.inject("EndTxn", "drop_reply")

        @pytest.mark.minibroker(faults=[{"api": "EndTxn", "action": "close"}])
        def test_unfired_of_the_marker(minibroker):
            pass

        def test_other(minibroker):
            assert minibroker.faults.list() == []
        """,
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*NeverFired: fault 1 (drop_reply on *EndTxn*never acted: 0 requests fitted*"])


def test_every_broker_of_a_test_is_verified_and_reported(run: Runs) -> None:
    """Whichever fixture was asked for last, and those that a test or a fixture of its own runs."""
    result = run(
        """
        import pytest
        from minibroker import Minibroker
        from minibroker.faults import DropReply

        @pytest.fixture(scope="module")
        def own():
            with Minibroker(record=100, topics={"early": 1}) as broker:
                yield broker

        @pytest.mark.parametrize("which", [0, 1])
        def test_one_of_two(minibroker, minibroker_cluster, which):
            (minibroker, minibroker_cluster)[which].faults.inject("EndTxn", DropReply())

        def test_own(own):
            own.faults.inject("Heartbeat", DropReply())

        def test_in_a_block():
            with Minibroker() as broker:
                broker.faults.inject("JoinGroup", DropReply())

        def test_after(own, minibroker, minibroker_cluster):
            pass

        def test_fails(own, minibroker, minibroker_cluster, confluent_admin, minibroker_of_test):
            assert minibroker_of_test is minibroker_cluster
            confluent_admin.list_topics(timeout=10)
            from confluent_kafka.admin import AdminClient
            AdminClient({"bootstrap.servers": own.bootstrap_servers}).list_topics(timeout=10)
            with Minibroker(record=10) as stopped:
                AdminClient({"bootstrap.servers": stopped.bootstrap_servers}).list_topics(timeout=10)
            assert False
        """,
    )
    result.assert_outcomes(passed=1, failed=5)
    never = re.findall(r"^E  .*NeverFired: fault 1 \(drop_reply on api=\['(\w+)'\]", "\n".join(result.outlines), re.M)
    assert never == ["EndTxn", "EndTxn", "Heartbeat", "JoinGroup"]
    titles = [line for line in result.outlines if "minibroker: what was refused at " in line]
    assert len(titles) == 4 + 2 * 2  # the last test's, and those of the two tests with two brokers
    last = "\n".join(result.outlines).rpartition("test_fails(")[2]
    assert last.count("no client sent a request") == 1
    assert len(re.findall(r"\d exchanges, as a page", last)) == 3
    assert not [line for line in result.outlines if line.startswith("minibroker/testing")]


def test_what_a_test_did_to_the_clock_and_brokers_ends_with_it(run: Runs) -> None:
    result = run(
        """
        import time

        def test_one(minibroker_cluster):
            minibroker_cluster.clock.freeze()
            minibroker_cluster.state.hold_markers()
            minibroker_cluster.state.kill_broker(broker=2)
            minibroker_cluster.state.pause_broker(broker=3)
            minibroker_cluster.state.fill_disk(broker=1)
            minibroker_cluster.state.cut_link(one=1, other=-1)
            minibroker_cluster.state.stop_controller()

        def test_two(minibroker_cluster, unique_topic):
            assert not minibroker_cluster.clock.frozen
            known = minibroker_cluster.control.describe()
            assert known["brokers"] == [1, 2, 3]
            assert (known["paused_brokers"], known["failed_disks"], known["held_markers"]) == ([], [], [])
            assert unique_topic in known["topics"]
            # The links are mended: every broker hears of the topic.
            heard = lambda cluster: all(unique_topic in broker.image.topics for broker in cluster.brokers.values())
            deadline = time.monotonic() + 10
            while not minibroker_cluster.cluster.run(heard):
                assert time.monotonic() < deadline
        """,
    )
    result.assert_outcomes(passed=2)


@pytest.mark.matrix
def test_a_failure_shows_what_a_fault_did(run: Runs) -> None:
    pytest.importorskip("confluent_kafka")
    result = run(
        """
        def test_fails(minibroker, confluent_producer, unique_topic):
            producer = confluent_producer({"enable.idempotence": True})
            minibroker.faults.inject("Produce", {"name": "error", "code": "INVALID_RECORD", "message": "too blue"})
            producer.produce(unique_topic, b"x")
            producer.flush(10)
            assert False
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*minibroker: what was refused*", "* rdkafka Produce: INVALID_RECORD (87) at topic-*-0: too blue *fault 1*"]
    )
    assert max(map(len, section(result)[:-1])) <= 200


def test_a_failure_shows_refusals_of_its_own_clients_and_where_the_rest_is(run: Runs) -> None:
    """Not the answers that belong to every join, and not what a client of an earlier test is told."""
    pytest.importorskip("confluent_kafka")
    result = run(
        """
        import pytest
        from confluent_kafka import Producer
        from minibroker.faults import Error

        @pytest.fixture(scope="module")
        def earlier(minibroker_session):
            producer = Producer({"bootstrap.servers": minibroker_session.bootstrap_servers, "client.id": "earlier"})
            producer.produce("before", b"x")  # so that it has all its connections
            producer.flush(10)
            return producer

        def test_before(earlier, minibroker):
            pass

        def test_fails(
            earlier, minibroker, confluent_producer, confluent_consumer, unique_topic, unique_transactional_id
        ):
            with minibroker.faults.inject("Metadata", Error("UNKNOWN_SERVER_ERROR"), client_id="earlier"):
                try:
                    earlier.list_topics("some", timeout=1)
                except Exception:
                    pass
            consumer = confluent_consumer()
            consumer.subscribe([unique_topic])
            producer = confluent_producer({"transactional.id": unique_transactional_id})
            producer.init_transactions(10)
            producer.begin_transaction()
            producer.produce(unique_topic, b"x")
            producer.flush(10)
            assert consumer.poll(0.1) is None
            minibroker.clock.advance(minutes=2)
            assert minibroker.requests("JoinGroup")[0].errors[0].startswith("MEMBER_ID_REQUIRED")
            producer.commit_transaction(10)
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    lines = section(result)
    assert any("EndTxn: " in line and "PRODUCER" in line for line in lines), lines
    assert not any("MEMBER_ID_REQUIRED" in line or "earlier Metadata" in line for line in lines)
    assert any("not shown: 1 refusal of clients that connected before" in line for line in lines)
    assert any("is CompleteAbort, producer id" in line and line.endswith(")") for line in lines), lines
    file = Path(lines[-1].rpartition(": ")[2])
    assert {json.loads(line)["api"] for line in file.read_text().splitlines()} >= {"EndTxn", "JoinGroup", "Metadata"}
    assert f"as a page: {file.with_suffix('.html')};" in lines[-1]
    assert file.with_suffix(".html").read_text().startswith("<!doctype html>")
    frames = [line for line in result.outlines if "minibroker/" in line.replace("\\", "/")]
    assert not [line for line in frames if line.startswith(("minibroker/control", "minibroker/testing"))]


def test_what_is_given_wrongly_shows_no_frame_of_ours(run: Runs) -> None:
    result = run(
        """
        import asyncio, socket
        import pytest
        from minibroker import Minibroker

        def test_port(): Minibroker(port=70000)

        @pytest.mark.parametrize("process", [False, True])
        def test_in_use(process):
            with socket.create_server(("127.0.0.1", 0)) as taken:
                Minibroker(port=taken.getsockname()[1], process=process).start()

        def test_in_use_by_coroutines():
            async def main(port):
                async with Minibroker(port=port): pass
            with socket.create_server(("127.0.0.1", 0)) as taken:
                asyncio.run(main(taken.getsockname()[1]))

        def test_action(minibroker): minibroker.faults.inject("EndTxn", "dropreply")

        @pytest.mark.minibroker(config={"num.partitons": "3"})
        def test_marker(minibroker): pass

        @pytest.mark.minibroker(broker=3)
        def test_marker_too(minibroker): pass
        """,
    )
    result.assert_outcomes(failed=5, errors=2)
    frames = [line for line in result.outlines if re.search(r"(minibroker|minibroker_storage)/\S+\.py:\d+: ", line)]
    assert frames == []
    assert sum("is in use by another program" in line for line in result.outlines if line[:1] == "E") == 3


def section(result: pytest.RunResult) -> list[str]:
    """The lines of the report's section on the broker."""
    begin = next(i for i, line in enumerate(result.outlines) if "minibroker: what was refused" in line)
    end = next(i for i, line in enumerate(result.outlines) if i > begin and line.startswith(("---", "===", "___")))
    return result.outlines[begin + 1 : end]


def test_clients_send_and_read(run: Runs) -> None:
    pytest.importorskip("confluent_kafka")
    pytest.importorskip("aiokafka")
    result = run(
        """
        import asyncio

        def test_confluent(
            confluent_producer, confluent_consumer, confluent_admin, unique_topic, unique_transactional_id
        ):
            producer = confluent_producer({"transactional.id": unique_transactional_id})
            producer.init_transactions(10)
            producer.begin_transaction()
            producer.produce(unique_topic, b"one")
            producer.commit_transaction(10)
            consumer = confluent_consumer()
            consumer.subscribe([unique_topic])
            assert consumer.poll(20).value() == b"one"
            assert unique_topic in confluent_admin.list_topics(timeout=10).topics

        def test_aiokafka(aiokafka_producer, aiokafka_consumer, unique_topic):
            async def story():
                async with aiokafka_producer() as producer:
                    await producer.send_and_wait(unique_topic, b"two")
                async with aiokafka_consumer(unique_topic) as consumer:
                    return (await consumer.getone()).value

            assert asyncio.run(asyncio.wait_for(story(), 30)) == b"two"
        """,
    )
    result.assert_outcomes(passed=2)


@pytest.mark.matrix
def test_every_xdist_worker_has_its_own_broker(run: Runs) -> None:
    pytest.importorskip("xdist")
    result = run(
        """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_many(minibroker, unique_topic, number):
            assert unique_topic in minibroker.control.describe()["topics"]
        """,
        "-p",
        "xdist",
        "-n2",
    )
    result.assert_outcomes(passed=4)


def test_the_package_names_the_plugin() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"minibroker": PLUGIN}


def test_loading_the_plugin_imports_no_broker_and_no_client() -> None:
    program = (
        f"import sys, {PLUGIN}; print([m for m in sys.modules if 'kafka' in m or 'cluster' in m or 'asyncio' in m])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_test_that_hangs_says_what_its_brokers_wait_for(run: Runs) -> None:
    """At once on stderr, and again in its report."""
    result = run(
        """
        import threading
        import pytest

        @pytest.fixture(scope="session")
        def paused(minibroker_session):
            minibroker_session.state.pause_broker()

        def test_hangs(paused, minibroker):
            watch = next(one for one in threading.enumerate() if one.name == "minibroker hang report")
            watch.join(30)
            assert False

        def test_quick():
            assert not [one for one in threading.enumerate() if one.name == "minibroker hang report"]
        """,
        "--minibroker-hang-after=0.5",
    )
    result.assert_outcomes(failed=1, passed=1)
    lines = [
        "minibroker: *::test_hangs has run for 0.5 s",
        "  the broker at 127.0.0.1:* waits for:",
        "    broker 1 is paused: it answers no request",
    ]
    result.stderr.fnmatch_lines(lines)
    result.stdout.fnmatch_lines(["*minibroker: what it waited for*", *lines])


def test_a_setup_file_holds_for_every_test(run: Runs, pytester: pytest.Pytester) -> None:
    """Its rules and clock are set anew for each test, and its rules need not act."""
    pytester.makefile(
        ".toml", setup='topics = { orders = 2 }\nclock = { frozen = true }\n[[rules]]\napi = "EndTxn"\naction = "close"'
    )
    result = run(
        """
        import pytest

        @pytest.mark.parametrize("number", [1, 2])
        def test_each(minibroker, number):
            assert len(minibroker.control.describe()["topics"]["orders"]) == 2
            assert len(minibroker.faults.list()) == 1
            assert minibroker.clock.frozen
            minibroker.clock.unfreeze()
        """,
        "--minibroker-setup=setup.toml",
    )
    result.assert_outcomes(passed=2)
