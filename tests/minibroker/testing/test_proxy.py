"""`Proxy` in a program, over sockets."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from minibroker import ConfigError, Minibroker, Proxy, StartError
from minibroker.client.cluster import ClusterClient
from minibroker.client.connection import BrokerFailed
from minibroker.client.transactions import TransactionsClient
from minibroker.faults import DropReply, Error, FaultError, Hold
from minibroker_protocol.errors import ApiError


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(ephemeral=True, topics={"t": 1}) as running:
        yield running


def test_faults_act_on_a_cluster_that_runs_elsewhere(broker: Minibroker) -> None:
    with Proxy(broker.bootstrap_servers, record=100) as proxy, TransactionsClient(proxy.bootstrap_servers) as client:
        client.patience = 0
        with proxy.faults.inject("InitProducerId", Error("NOT_COORDINATOR")), pytest.raises(ApiError):
            client.init_producer_id("app", 60_000)
        assert client.init_producer_id("app", 60_000)
        assert [one.errors for one in proxy.requests("InitProducerId")] == [("NOT_COORDINATOR (16)",), ()]
        assert {one.broker for one in proxy.requests("InitProducerId")} == {1}
        with pytest.raises(FaultError, match=r"clock\.advance reads or changes what brokers keep"):
            proxy.clock.advance(hours=1)
        assert repr(proxy) == f"<Proxy at {proxy.bootstrap_servers}>"
        assert repr(proxy.faults).startswith("<Faults: ")
    assert broker.state is not None


def test_a_block_whose_rule_never_acted_fails(broker: Minibroker) -> None:
    with pytest.raises(AssertionError, match="EndTxn"), Proxy(broker.bootstrap_servers) as proxy:
        proxy.faults.inject("EndTxn", DropReply())


def test_reset_removes_rules_and_leaves_topics_alone(broker: Minibroker) -> None:
    with Proxy(broker.bootstrap_servers, record=10) as proxy:
        proxy.faults.inject("EndTxn", DropReply())
        with ClusterClient(proxy.bootstrap_servers) as client:
            client.brokers()
        assert proxy.requests()
        with pytest.raises(FaultError, match="deletes no topics here"):
            proxy.reset(topics=True)
        assert proxy.requests()
        proxy.reset()
        assert (proxy.faults.list(), proxy.requests()) == ([], [])


async def test_in_coroutines(broker: Minibroker) -> None:
    async with Proxy(broker.bootstrap_servers) as proxy:
        assert proxy.control.describe()["brokers"] == [1]


def test_nothing_is_left_also_of_what_is_held(broker: Minibroker) -> None:
    before = set(threading.enumerate())
    with Proxy(broker.bootstrap_servers) as proxy:
        held = proxy.faults.inject("Metadata", Hold())
        asking = threading.Thread(target=ask, args=(proxy,))
        asking.start()
        held.wait()
    asking.join()
    # The broker behind it may begin another thread for its disk meanwhile; those are named otherwise.
    assert [thread for thread in threading.enumerate() if thread not in before and thread.name == "minibroker"] == []


def ask(proxy: Proxy) -> None:
    with suppress(BrokerFailed), ClusterClient(proxy.bootstrap_servers) as client:
        client.brokers()


def test_topics_are_made_on_the_upstream(broker: Minibroker) -> None:
    with Proxy(broker.bootstrap_servers) as proxy:
        proxy.create_topic("made", partitions=2)
        with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS"):
            proxy.create_topic("made")
    assert len(broker.control.describe()["topics"]["made"]) == 2


def test_the_page_and_the_control_api(broker: Minibroker) -> None:
    with Proxy(broker.bootstrap_servers, page=True) as proxy:
        address, _, token = proxy.page_url.partition("#token=")
        with urllib.request.urlopen(address) as page:
            assert b"live.js" in page.read()
        api = urllib.request.Request(
            address.replace("/page/", "/v1/openapi.json"), headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(api) as described:
            paths = json.load(described)["result"]["paths"]
        assert "/v1/fault/add" in paths
        assert "/v1/clock/advance" not in paths
        with urllib.request.urlopen(f"{address}events") as events:
            text = b""
            while b'"brokers": [1]' not in text or b'"name": "1"' not in text:
                line = events.readline()
                assert line
                text += line


@pytest.mark.minibroker(faults=[{"api": "Metadata", "action": "close"}])
def test_the_fixture_stands_in_front_of_the_tests_broker(
    minibroker_proxy: Proxy, minibroker: Minibroker, bootstrap_servers: str, unique_topic: str
) -> None:
    assert bootstrap_servers == minibroker_proxy.bootstrap_servers != minibroker.bootstrap_servers
    with ClusterClient(bootstrap_servers) as client:
        assert unique_topic in {topic.name for topic in client.metadata(None).topics}
    assert minibroker_proxy.faults.list() == []  # the rule is the broker's, and acts once


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="'kafka' is not HOST:PORT"):
        Proxy("kafka")
    with pytest.raises(StartError, match="cannot connect"), Proxy("127.0.0.1:1"):
        pass
    with pytest.raises(RuntimeError, match="the proxy is not running"):
        Proxy("127.0.0.1:1").bootstrap_servers  # noqa: B018
