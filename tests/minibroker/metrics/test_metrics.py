"""What `--metrics` serves: the names a Kafka has at Prometheus, and figures that agree with what was done."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.faults import Error
from minibroker.requests.chain import Place

BEANS = Path(__file__).with_name("mbeans-4.3.1.txt")
"""What Kafka 4.3.1 offers to JMX after a transaction and a group's commit, one topic, partition, request and error of
each (org.apache.kafka.tools.JmxTool, one node)."""
Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(url: str) -> Page:
    with urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def refused(url: str) -> int:
    """The status of a page that is not there."""
    with pytest.raises(HTTPError) as told:
        urlopen(url, timeout=20)
    told.value.close()
    return told.value.code


def value(page: Page, name: str, **labels: str) -> float:
    return page[name, frozenset(labels.items())]


@pytest.fixture
def broker() -> Iterator[Minibroker]:
    with Minibroker(metrics="127.0.0.1:0", topics={"orders": 2}) as running:
        yield running


def copy(broker: Minibroker) -> None:
    """One transaction of two records, and a group that reads them and commits."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "app-1"})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(2):
        producer.produce("orders", b"x" * 10, partition=0)
    producer.commit_transaction()
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert len(consumer.consume(2, 20)) == 2
    consumer.commit(asynchronous=False)
    consumer.close()


def kafka_names() -> dict[str, set[frozenset[str]]]:
    """Name → names of labels, as the published rules make them of the recorded beans."""
    found: dict[str, set[frozenset[str]]] = {}
    for line in BEANS.read_text(encoding="utf-8").splitlines():
        matched = re.fullmatch(r"kafka\.([\w.]+):type=([^,]+),name=([^,>]+)((?:,[^,=]+=[^,>]+)*)><(\w+)", line)
        assert matched, line
        domain, kind, name, rest, attribute = matched.groups()
        labels = {pair.partition("=")[0] for pair in rest.split(",") if pair}
        if attribute == "Value":
            suffix = ""
        elif attribute == "Count":
            suffix = "_total" if name.endswith("PerSec") else "_count"
        else:
            suffix, labels = "", {*labels, "quantile"}
        short = name.removesuffix("PerSec") if suffix == "_total" else name
        whole = f"kafka_{domain.replace('.', '_')}_{kind}_{short}{suffix}".lower()
        found.setdefault(whole, set()).add(frozenset(labels))
    return found


def test_each_name_is_one_that_the_rules_make_of_a_bean_of_kafka(broker: Minibroker) -> None:
    copy(broker)
    known, page = kafka_names(), scrape(broker.metrics_url)
    for name, labels in page:
        if not name.startswith("minibroker_"):
            assert frozenset(key for key, _ in labels) in known[name], (name, labels)
    assert len({name for name, _ in page if name in known}) > 50


def test_the_figures_are_those_of_what_was_done(broker: Minibroker) -> None:
    copy(broker)
    page = scrape(broker.metrics_url)
    topics = "kafka_server_brokertopicmetrics_"
    assert value(page, f"{topics}messagesin_total", topic="orders") == 2
    assert value(page, f"{topics}messagesin_total") == 2
    taken = value(page, f"{topics}bytesin_total", topic="orders")
    assert value(page, f"{topics}bytesout_total", topic="orders") >= taken > 20
    assert value(page, "kafka_network_requestmetrics_requests_total", request="EndTxn", version="1") == 1
    assert value(page, "kafka_network_requestmetrics_totaltimems_count", request="EndTxn") == 1
    assert value(page, "kafka_network_requestmetrics_totaltimems", request="EndTxn", quantile="0.999") > 0
    assert value(page, "kafka_network_requestmetrics_errors_total", request="EndTxn", error="NONE") == 1
    log = {"topic": "orders", "partition": "0"}
    assert value(page, "kafka_log_log_logendoffset", **log) == 3  # the marker is the third
    assert value(page, "kafka_log_log_size", **log) > taken
    assert value(page, "kafka_server_replicamanager_produceridcount") == 1
    assert value(page, "kafka_coordinator_group_groupmetadatamanager_numgroupsempty") == 1
    assert value(page, "kafka_coordinator_group_groupmetadatamanager_numoffsets") == 1
    assert value(page, "minibroker_coordinator_transactional_ids", state="CompleteCommit") == 1
    assert value(page, "kafka_controller_kafkacontroller_globaltopiccount") == 3


def test_what_a_fault_answers_is_counted_as_the_client_gets_it(broker: Minibroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "app-1"})
    answer = Error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    with broker.faults.inject("InitProducerId", answer), pytest.raises(KafkaException):
        producer.init_transactions()
    labels = {"request": "InitProducerId", "error": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}
    assert value(scrape(broker.metrics_url), "kafka_network_requestmetrics_errors_total", **labels) == 1


def test_of_several_brokers_each_has_a_page_of_its_own_and_alerts_fire() -> None:
    config = {"default.replication.factor": "3", "replica.lag.time.max.ms": "500"}
    with Minibroker(brokers=3, metrics="127.0.0.1:0", topics={"orders": 3}, config=config) as cluster:
        together = scrape(cluster.metrics_url)
        ids = sorted(dict(labels)["broker"] for name, labels in together if name.endswith("_leadercount"))
        leaders = [value(together, "kafka_server_replicamanager_leadercount", broker=node) for node in ids]
        assert (len(ids), sum(leaders)) == (3, 3)
        first, _, gone = ids
        own = scrape(f"{cluster.metrics_url}/{first}")
        assert value(own, "kafka_server_replicamanager_partitioncount") == 3
        assert value(own, "kafka_server_replicamanager_underreplicatedpartitions") == 0
        cluster.state.kill_broker(broker=int(gone))
        assert refused(f"{cluster.metrics_url}/{gone}") == 503
        left = scrape(cluster.metrics_url)
        lacking = "kafka_server_replicamanager_underreplicatedpartitions"
        assert value(left, lacking, broker=first) + value(left, lacking, broker=ids[1]) == 3
        assert value(left, "kafka_controller_kafkacontroller_activebrokercount", broker=first) == 2
        cluster.state.pause_broker(broker=int(ids[1]))
        assert refused(f"{cluster.metrics_url}/{ids[1]}") == 503


@pytest.mark.parametrize(("path", "code"), [("/", 404), ("/metrics/99", 503), ("/metricsx", 404)])
def test_other_pages_say_where_the_metrics_are(broker: Minibroker, path: str, code: int) -> None:
    assert refused(broker.metrics_url.removesuffix("/metrics") + path) == code


def test_a_child_process_serves_them_too() -> None:
    with Minibroker(process=True, metrics="127.0.0.1:0") as child:
        assert value(scrape(child.metrics_url), "kafka_server_kafkaserver_brokerstate") == 3


def test_without_them_nothing_is_loaded_or_counted() -> None:
    with Minibroker(ephemeral=True) as plain:
        tap = plain.cluster.run(lambda cluster: cluster.dispatcher(cluster.nodes[0].node_id).link_at(Place.METER))
        assert tap is None
        with pytest.raises(RuntimeError, match="no metrics are served"):
            _ = plain.metrics_url
    code = (
        "import sys, minibroker\nwith minibroker.Minibroker(ephemeral=True): pass\n"
        "print([m for m in sys.modules if m.startswith(('minibroker.metrics', 'prometheus'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("option", "what"), [("--metrics", "the metrics"), ("--control", "the control API")])
def test_a_taken_port_is_one_line(option: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--port", "0", "--ephemeral", option, where]) == 1
    todo = "is in use by another program; choose another port, or 0 for a free one"
    assert f"{what}: {where} {todo}" in capsys.readouterr().err.splitlines()[-1]


def test_a_missing_package_is_one_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "pip" else None)
    assert main(["serve", "--port", "0", "--ephemeral", "--metrics", "127.0.0.1:0"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("minibroker: --metrics needs prometheus-client: ")
    assert said.endswith('-m pip install "minibroker[metrics]"')


def test_an_address_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--metrics", "9404"]) == 2
    assert capsys.readouterr().err == "minibroker: the address of the metrics is HOST:PORT, not '9404'\n"
