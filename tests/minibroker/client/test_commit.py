"""`minibroker transactions commit`: what becomes visible, what is refused, and the commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka")

from abandoned import ID, abandon, check_commit, committed_values

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.client.commit import commit, pending
from minibroker.client.transactions import TRANSACTION_KEY, Described, TransactionsClient
from minibroker_protocol import messages as m


@pytest.fixture(scope="module")
def held() -> Iterator[tuple[str, Described]]:
    """A broker with an abandoned transaction, and what its coordinator says of it."""
    with Minibroker(ephemeral=True) as broker, TransactionsClient(broker.bootstrap_servers) as client:
        abandon(broker.bootstrap_servers)
        yield broker.bootstrap_servers, client.describe(ID)[1]


@pytest.mark.parametrize("transaction_version", [1, 2])
def test_an_abandoned_transaction_is_committed(capsys: pytest.CaptureFixture[str], transaction_version: int) -> None:
    with Minibroker(transaction_version=transaction_version, ephemeral=True) as broker:
        check_commit(broker.bootstrap_servers, capsys, bumps=transaction_version == 2)


@pytest.mark.parametrize(
    ("name", "producer", "epoch", "status", "said"),
    [
        (ID, -1, 0, 2, "below 0"),
        (ID, 0, -1, 2, "below 0"),
        (ID, 1, 0, 2, "has producer id {id}, not {wrong_id} (Ongoing)"),
        (ID, 0, 1, 2, "has epoch {epoch}, not {wrong_epoch} (Ongoing)"),
        ("nobody", 0, 0, 1, "TRANSACTIONAL_ID_NOT_FOUND"),
    ],
)
def test_another_transaction_is_refused(
    held: tuple[str, Described],
    capsys: pytest.CaptureFixture[str],
    name: str,
    producer: int,
    epoch: int,
    status: int,
    said: str,
) -> None:
    """`producer`, `epoch`: -1, or what is added to the right one."""
    bootstrap, known = held
    asked_id = -1 if producer < 0 else known.producer_id + producer
    asked_epoch = -1 if epoch < 0 else known.producer_epoch + epoch
    capsys.readouterr()
    asked = ["--producer-id", str(asked_id), "--epoch", str(asked_epoch)]
    assert main(["transactions", "commit", name, *asked, "--bootstrap", bootstrap]) == status
    told = capsys.readouterr()
    values = {"id": known.producer_id, "wrong_id": asked_id, "epoch": known.producer_epoch, "wrong_epoch": asked_epoch}
    assert said.format(**values) in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert committed_values(bootstrap) == []


def test_what_has_ended_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Aborted or empty: by transaction.version 1 the epoch does not tell."""
    with (
        Minibroker(transaction_version=1, ephemeral=True) as broker,
        TransactionsClient(broker.bootstrap_servers) as client,
    ):
        abandon(broker.bootstrap_servers)
        known = client.describe(ID)[1]
        asked = ID, known.producer_id, known.producer_epoch
        assert commit(client, *asked, "Ongoing") == "CompleteCommit"
        assert pending(client, *asked) == ("CompleteCommit", [])
        producer_id, epoch = client.fence(ID)
        with pytest.raises(ValueError, match="is in state Empty"):
            pending(client, ID, producer_id, epoch)


@pytest.mark.parametrize("transaction_version", [1, 2])
def test_a_second_commit_says_that_it_is_one(capsys: pytest.CaptureFixture[str], transaction_version: int) -> None:
    """With the epoch of the first, as a script that was interrupted has it."""
    with (
        Minibroker(transaction_version=transaction_version, ephemeral=True) as broker,
        TransactionsClient(broker.bootstrap_servers) as client,
    ):
        abandon(broker.bootstrap_servers)
        known = client.describe(ID)[1]
        epochs = ["--producer-id", str(known.producer_id), "--epoch", str(known.producer_epoch)]
        words = ["transactions", "commit", ID, *epochs, "--bootstrap", broker.bootstrap_servers]
        assert main(words) == 0
        assert "already" not in capsys.readouterr().err
        after = client.describe(ID)[1]
        assert main(words) == 0
        said = capsys.readouterr()
        assert f"{ID} is committed already: nothing was sent" in said.err
        assert "CompleteCommit" in said.out
        assert client.describe(ID)[1] == after
        if transaction_version == 2:  # the next transaction of the producer has not begun
            assert main([*words[:-3], str(after.producer_epoch), *words[-2:]]) == 2


def test_a_decided_commit_is_waited_for() -> None:
    """While markers are held back the state is PrepareCommit: nothing is sent, and what is missing is named."""
    with (
        Minibroker(transaction_version=2, ephemeral=True) as broker,
        TransactionsClient(broker.bootstrap_servers) as client,
    ):
        abandon(broker.bootstrap_servers)
        known = client.describe(ID)[1]
        asked = ID, known.producer_id, known.producer_epoch
        broker.state.hold_markers()
        ending = m.EndTxnRequest(transactional_id=ID, producer_id=asked[1], producer_epoch=asked[2], committed=True)
        address = client.coordinator(ID, TRANSACTION_KEY)[1]
        assert client.ask(address, ending, m.EndTxnResponse, 5).error_code == 0
        asked = ID, known.producer_id, known.producer_epoch + 1  # as it went up with the decision
        state, partitions = pending(client, *asked)
        assert (state, [one.records for one in partitions if one.topic == "t"]) == ("PrepareCommit", [2, 1])
        broker.state.release_markers()
        assert commit(client, *asked, state) == "CompleteCommit"
        assert committed_values(broker.bootstrap_servers) == [b"a", b"b", b"c"]
