"""`minibroker transactions` against a running broker: what it says, and what it does to transactions nobody ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from seed_client import produce_request

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.client.connection import BrokerFailed
from minibroker.client.transactions import TransactionsClient
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

ID = "tx"
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


@pytest.fixture
def broker() -> Iterator[Minibroker]:
    with Minibroker(topics={"t": 2, "quiet": 1}, semantics="kip", config=UNVERIFIED, ephemeral=True) as running:
        yield running


@pytest.fixture
def client(broker: Minibroker) -> Iterator[TransactionsClient]:
    with TransactionsClient(broker.bootstrap_servers) as connected:
        yield connected


def _begin(client: TransactionsClient, name: str = ID, partition: int = 0) -> tuple[int, int]:
    """A producer with a transaction open on a partition of ``t``."""
    address = client.coordinator(name, 1)[1]
    init = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    producer = client.ask(address, init, m.InitProducerIdResponse, 4)
    assert producer.error_code == 0
    held = (producer.producer_id, producer.producer_epoch)
    add = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=held[0],
        v3_and_below_producer_epoch=held[1],
        v3_and_below_topics=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[partition])],
    )
    client.ask(address, add, m.AddPartitionsToTxnResponse, 3)
    assert _produce(client, held, partition) == 0
    return held


def _produce(client: TransactionsClient, held: tuple[int, int], partition: int = 0) -> int:
    request = produce_request(held, 0, 1, partition, True, 1_700_000_000_000)
    answer = client.ask(client.leader("t", partition), request, m.ProduceResponse, 9)
    return answer.responses[0].partition_responses[0].error_code


def _rows(broker: Minibroker, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    action, *rest = arguments
    assert main(["transactions", action, "--bootstrap", broker.bootstrap_servers, "--json", *rest]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.seed("360-8", semantics="kip", how="minibroker transactions")
def test_list_and_describe(broker: Minibroker, client: TransactionsClient, capsys: pytest.CaptureFixture[str]) -> None:
    held = _begin(client)
    other = _begin(client, "other", 1)
    listed = {row["transactional_id"]: row for row in _rows(broker, capsys, "list")}
    assert set(listed) == {ID, "other"}
    assert listed[ID] == {"transactional_id": ID, "coordinator": 1, "producer_id": held[0], "state": "Ongoing"}
    for filters in (["--pattern", "ot.*"], ["--producer-id", str(other[0])]):
        assert [row["transactional_id"] for row in _rows(broker, capsys, "list", *filters)] == ["other"]
    assert _rows(broker, capsys, "list", "--state", "CompleteAbort") == []
    assert _rows(broker, capsys, "list", "--running-longer-than-ms", "600000") == []
    (state,) = _rows(broker, capsys, "describe", ID)
    assert (state["state"], state["partitions"], state["timeout_ms"]) == ("Ongoing", ["t-0"], 60_000)
    rows = _rows(broker, capsys, "describe", "--kip-360", ID, "nobody")
    assert rows[0] == {
        "transactional_id": ID,
        "error": "NONE",
        "producer_id": held[0],
        "epoch": held[1],
        "state": "Ongoing",
        "partitions": ["t-0"],
    }
    assert (rows[1]["error"], rows[1]["producer_id"]) == ("TRANSACTIONAL_ID_NOT_FOUND", -1)
    (producer,) = _rows(broker, capsys, "producers", "--topic", "t", "--partition", "0")
    assert (producer["producer_id"], producer["transaction_start_offset"]) == (held[0], 0)


def test_the_table(broker: Minibroker, client: TransactionsClient, capsys: pytest.CaptureFixture[str]) -> None:
    held = _begin(client)
    assert main(["transactions", "list", "--bootstrap", broker.bootstrap_servers]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"]
    assert row.split() == [ID, "1", str(held[0]), "Ongoing"]


def test_taking_an_id_over_ends_its_transaction(
    broker: Minibroker, client: TransactionsClient, capsys: pytest.CaptureFixture[str]
) -> None:
    held = _begin(client)
    (row,) = _rows(broker, capsys, "abort", "--transactional-id", ID)
    assert row["producer_id"] == held[0]
    assert row["producer_epoch"] > held[1]
    assert client.producers("t", 0)[0].current_txn_start_offset == -1
    assert client.describe(ID)[1].transaction_state == "Empty"


@pytest.mark.seed("360-14", semantics="kip", how="minibroker transactions")
def test_a_hanging_transaction_is_found_and_ended(
    broker: Minibroker, client: TransactionsClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fenced producer writes where its state was lost: the coordinator knows nothing of it (the draft of KIP-360)."""
    held = _begin(client)
    assert _rows(broker, capsys, "find-hanging", "--older-than-ms", "0") == []  # its coordinator will end it
    client.fence(ID)
    broker.cluster.lose_producers("t", cause="delete-records")
    assert _produce(client, held) == 0
    (found,) = _rows(broker, capsys, "find-hanging", "--topic", "t", "--older-than-ms", str(1 << 60))
    assert (found["transactional_id"], found["state"]) == (ID, "Empty")
    assert (found["topic"], found["partition"], found["producer_id"]) == ("t", 0, held[0])
    place = ["--topic", "t", "--partition", "0", "--start-offset", str(found["start_offset"])]
    (ended,) = _rows(broker, capsys, "abort", *place)
    assert ended["producer_id"] == held[0]
    assert _rows(broker, capsys, "find-hanging") == []
    assert broker.cluster.run(lambda c: c.brokers[1].partition("t", 0).log.producers.open_transactions()) == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--pattern", "no-such-.*"], "no transactions"),
        (["producers", "--topic", "quiet", "--partition", "0"], "no producers"),
        (["find-hanging", "--topic", "quiet"], "no hanging transactions"),
    ],
)
def test_an_empty_table_says_so_to_people(
    broker: Minibroker, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    capsys.readouterr()
    action, *rest = arguments
    for form, told in ([], f"minibroker transactions: {said}\n"), (["--json"], ""):
        assert main(["transactions", action, "--bootstrap", broker.bootstrap_servers, *rest, *form]) == 0
        assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["describe", "nobody"], 1, "TRANSACTIONAL_ID_NOT_FOUND: transactional id nobody\n"),
        (["producers", "--topic", "nowhere", "--partition", "0"], 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (["producers", "--topic", "t", "--partition", "7"], 1, "t has no partition 7"),
        (["list", "--pattern", "("], 1, "INVALID_REGULAR_EXPRESSION"),
        (["list", "--state", "Asleep"], 2, "no transaction state is called Asleep"),
        (["abort", "--topic", "t"], 2, "either --transactional-id, or"),
        (["abort", "--transactional-id", "x", "--topic", "t"], 2, "either --transactional-id, or"),
        (
            ["abort", "--topic", "t", "--partition", "0", "--start-offset", "5"],
            2,
            "no transaction is open on t-0 since",
        ),
    ],
)
def test_refusals_are_one_line(
    broker: Minibroker, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    capsys.readouterr()
    action, *rest = arguments
    assert main(["transactions", action, "--bootstrap", broker.bootstrap_servers, *rest]) == status
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert told.err.count("\n") == 1


def test_options_may_stand_before_the_action(
    broker: Minibroker, client: TransactionsClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _begin(client)
    for first, second in (((0, 3), (3, 3)), ((0, 2), (2, 3)), ((2, 3), (0, 2)), ((0, 0), (0, 3))):
        words = ["--bootstrap", broker.bootstrap_servers, "--json"]
        assert main(["transactions", *words[slice(*first)], "list", *words[slice(*second)]]) == 0
        assert json.loads(capsys.readouterr().out)["transactional_id"] == ID
    absent = ["--command-config", str(tmp_path / "absent")]
    assert main(["transactions", "--bootstrap", broker.bootstrap_servers, *absent, "list"]) == 2
    assert "absent: No such file" in capsys.readouterr().err
    assert main(["transactions", "--json", "list"]) == 2
    said = "minibroker transactions: the following arguments are required: --bootstrap (see --help)\n"
    assert capsys.readouterr().err == said


def test_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transactions", "list", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "cannot connect" in capsys.readouterr().err
    assert main(["transactions", "list", "--bootstrap", "nowhere"]) == 2
    assert "not HOST:PORT" in capsys.readouterr().err


def test_the_next_bootstrap_address_is_tried(broker: Minibroker) -> None:
    with TransactionsClient(f"127.0.0.1:1,{broker.bootstrap_servers}") as client:
        assert client.list_transactions() == []
    with TransactionsClient("127.0.0.1:1") as client, pytest.raises(BrokerFailed):
        client.list_transactions()


def test_another_brokers_ids() -> None:
    """With several brokers every question goes to the one that coordinates or leads."""
    with (
        Minibroker(brokers=3, topics={"t": 3}, semantics="kip", config=UNVERIFIED, ephemeral=True) as broker,
        TransactionsClient(broker.bootstrap_servers) as client,
    ):
        names = [f"id-{number}" for number in range(4)]
        for number, name in enumerate(names):
            _begin(client, name, number % 3)
        assert {listed.transactional_id for _, listed in client.list_transactions()} == set(names)
        states = client.describe_state([*names, "nobody"])
        assert {name: state.state for name, state in states.items() if state.error == 0} == dict.fromkeys(
            names, "Ongoing"
        )
        with pytest.raises(ApiError) as refused:
            client.describe("nobody")
        assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_an_id_with_escape_sequences_is_shown(
    broker: Minibroker, client: TransactionsClient, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "x\x1b[2J\n\x9b1m"
    held = _begin(client, name)
    assert main(["transactions", "list", "--bootstrap", broker.bootstrap_servers]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert row.split() == [r"x\x1b[2J\n\x9b1m", "1", str(held[0]), "Ongoing"]
    assert head.index("COORDINATOR") == row.index(" 1 ") + 1  # its escapes count for the width
    assert [entry["transactional_id"] for entry in _rows(broker, capsys, "list")] == [name]


def _producer_id(client: TransactionsClient) -> int:
    request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    return client.ask_any(request, m.InitProducerIdResponse, 4).producer_id


def test_the_producer_ids_of_a_directory_are_skipped(
    broker: Minibroker, client: TransactionsClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = _producer_id(client)
    for following, last in ((first + 5, first + 4), (first + 2, first + 6)):
        entries = [{"type": "producer-ids", "next": number} for number in (1, following)]
        journal = "".join(json.dumps(entry) + "\n" for entry in [*entries, {"type": "restart"}])
        (tmp_path / "metadata.journal").write_text(journal)
        (row,) = _rows(broker, capsys, "skip-producer-ids", "--data-dir", str(tmp_path))
        assert row == {"data_dir": str(tmp_path), "ids_below": following, "last_producer_id": last}
        assert _producer_id(client) == last + 1


def test_a_directory_without_producer_ids_uses_none_up(
    broker: Minibroker, client: TransactionsClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = _producer_id(client)
    (tmp_path / "metadata.journal").write_text('{"type": "restart"}\n')
    (row,) = _rows(broker, capsys, "skip-producer-ids", "--data-dir", str(tmp_path))
    assert row["last_producer_id"] is None
    assert _producer_id(client) == before + 1
    (tmp_path / "metadata.journal").unlink()
    asked = ("skip-producer-ids", "--bootstrap", broker.bootstrap_servers, "--data-dir", str(tmp_path))
    assert main(["transactions", *asked]) == 2
    assert "metadata.journal: No such file or directory" in capsys.readouterr().err
