"""Users out of JAAS lines and out of our own setting."""

from __future__ import annotations

import pytest

from minibroker import ConfigError
from minibroker.config.settings import ConfigSource, Settings
from minibroker.security.credentials import users_of_jaas, users_of_listener, users_of_setting

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def test_users_of_a_login_module_and_not_the_brokers_own_login() -> None:
    text = f'{MODULE} username="admin" password="p" user_admin="p" user_alice="a \\"b\\" \\\\" user_bob=plain;'
    assert users_of_jaas(text) == {"admin": "p", "alice": 'a "b" \\', "bob": "plain"}


def test_a_password_may_hold_a_colon() -> None:
    assert users_of_setting("alice:a:b, bob:c") == {"alice": "a:b", "bob": "c"}
    assert users_of_setting(" ,alice:a,,bob:b, ") == {"alice": "a", "bob": "b"}
    assert users_of_setting(None) == {}


@pytest.mark.parametrize("text", ["alice", "alice:", ":secret"])
def test_an_entry_that_is_no_pair_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(ConfigError, match="entry 2 is not NAME:PASSWORD") as refused:
        users_of_setting(f"bob:hush,{text}")
    assert "hush" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_jaas_line_belongs_to_its_listener() -> None:
    name = "listener.name.sasl_ssl.plain.sasl.jaas.config"
    settings = Settings({name: f'{MODULE} user_alice="a";'})
    assert settings.ignored == ()
    assert users_of_listener(settings.jaas, "SASL_SSL", "bob:b") == {"bob": "b", "alice": "a"}
    assert users_of_listener(settings.jaas, "OTHER", None) == {}


def test_passwords_are_told_to_nobody_who_describes_the_configuration() -> None:
    settings = Settings({"minibroker.sasl.users": "alice:hush", "ssl.key.password": "hush"})
    for entry in settings.describe():
        assert "hush" not in str(entry)
    (users,) = settings.describe(["minibroker.sasl.users"])
    assert users.value is None
    assert users.source is not ConfigSource.DEFAULT_CONFIG
