"""The SASL exchange as a state machine: who gets in, who does not, and what has no place in it."""

from __future__ import annotations

import pytest
from scramp import ScramClient

from minibroker import ConfigError
from minibroker.security.sasl import (
    Authentication,
    AuthenticationFailed,
    IllegalSaslState,
    SaslState,
    mechanisms,
)

USERS = {"alice": "secret", "bob": "x,=y"}
MAKERS = mechanisms(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], USERS)


def begun(mechanism: str, version: int = 1) -> Authentication:
    authentication = Authentication(MAKERS)
    assert authentication.handshake(mechanism, version)
    return authentication


def test_plain_lets_a_user_in() -> None:
    authentication = begun("PLAIN")
    assert authentication.token(b"\0alice\0secret") == b""
    assert (authentication.state, authentication.name) == (SaslState.COMPLETE, "alice")


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0secret", "Invalid username or password"),
        (b"\0nobody\0", "Invalid username or password"),
        (b"\0\0", "Invalid username or password"),
        (b"bob\0alice\0secret", "authorization id that is different"),
        (b"alice\0secret", "expected 3 tokens, got 2"),
        (b"\xff\0a\0b", "expected 3 tokens"),
    ],
)
def test_plain_refuses_with_a_reason(token: bytes, reason: str) -> None:
    authentication = begun("PLAIN")
    with pytest.raises(AuthenticationFailed, match=reason):
        authentication.token(token)
    assert authentication.state is SaslState.FAILED
    assert authentication.name == ""


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", USERS)
def test_scram_lets_a_user_in_and_proves_itself(mechanism: str, user: str) -> None:
    authentication = begun(mechanism)
    client = ScramClient([mechanism], user, USERS[user])
    client.set_server_first(authentication.token(client.get_client_first().encode()).decode())
    assert authentication.state is SaslState.AUTHENTICATE
    client.set_server_final(authentication.token(client.get_client_final().encode()).decode())
    assert (authentication.state, authentication.name) == (SaslState.COMPLETE, user)


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret")])
def test_scram_refuses_a_wrong_password_and_an_unknown_user_alike(user: str, password: str) -> None:
    authentication = begun("SCRAM-SHA-256")
    client = ScramClient(["SCRAM-SHA-256"], user, password)
    with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism SCRAM-SHA-256"):
        client.set_server_first(authentication.token(client.get_client_first().encode()).decode())
        authentication.token(client.get_client_final().encode())
    assert authentication.state is SaslState.FAILED


@pytest.mark.parametrize("token", [b"", b"n", b"\xff", b"n,,n=alice", b"n,,r=x", b"p=tls-unique,,n=alice,r=x"])
def test_scram_refuses_a_malformed_first_message(token: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        begun("SCRAM-SHA-256").token(token)


@pytest.mark.parametrize(("front", "behind"), [("twice", ""), ("", "more"), ("other", "more")])
def test_scram_takes_a_nonce_that_ends_with_the_servers_as_kafka_does(front: str, behind: str) -> None:
    """librdkafka before 2.6.1 sends its own part twice; anything else is no answer to this server, and is said."""
    authentication = begun("SCRAM-SHA-256")
    client = ScramClient(["SCRAM-SHA-256"], "alice", "secret")
    first = authentication.token(client.get_client_first().encode()).decode()
    client.set_server_first(first)
    nonce = str(client.nonce)
    client.nonce = type(client.nonce)(front + nonce + behind)
    client.server_first = first
    last = client.get_client_final().encode()
    if not behind:
        client.set_server_final(authentication.token(last).decode())
        assert (authentication.state, authentication.name) == (SaslState.COMPLETE, "alice")
        return
    with pytest.raises(AuthenticationFailed, match="invalid credentials") as raised:
        authentication.token(last)
    told = f"SCRAM-SHA-256: the client's last message has nonce '{front}{nonce}{behind}', which should end with"
    assert raised.value.reason.startswith(told)


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("alice", "wrong", "SCRAM-SHA-256: The client keys don't match.: invalid-proof"),
        ("nobody", "secret", "SCRAM-SHA-256: there is no user 'nobody' with this mechanism"),
    ],
)
def test_who_runs_the_broker_is_told_what_was_wrong_and_the_client_is_not(
    user: str, password: str, reason: str
) -> None:
    authentication = begun("SCRAM-SHA-256")
    client = ScramClient(["SCRAM-SHA-256"], user, password)
    with pytest.raises(AuthenticationFailed) as raised:
        client.set_server_first(authentication.token(client.get_client_first().encode()).decode())
        authentication.token(client.get_client_final().encode())
    assert raised.value.reason == reason
    assert str(raised.value).endswith("invalid credentials with SASL mechanism SCRAM-SHA-256")


def test_a_mechanism_that_is_not_offered_ends_it() -> None:
    authentication = Authentication(mechanisms(["PLAIN"], USERS))
    assert not authentication.handshake("SCRAM-SHA-256", 1)
    assert authentication.state is SaslState.FAILED
    assert authentication.mechanisms == ["PLAIN"]


def test_requests_out_of_order_have_no_answer() -> None:
    with pytest.raises(IllegalSaslState):
        Authentication(MAKERS).token(b"\0alice\0secret")
    with pytest.raises(IllegalSaslState):
        begun("PLAIN").handshake("PLAIN", 1)
    through = begun("PLAIN")
    through.token(b"\0alice\0secret")
    with pytest.raises(IllegalSaslState):
        through.token(b"\0alice\0secret")


@pytest.mark.parametrize(("enabled", "reason"), [(["GSSAPI"], "'GSSAPI' is none of PLAIN"), ([], "no client could")])
def test_mechanisms_that_cannot_be_had_are_refused(enabled: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        mechanisms(enabled, USERS)
