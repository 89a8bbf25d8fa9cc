"""The hint that names what is missing."""

from __future__ import annotations

import sys

import pytest

from minibroker.kernel import extras


def test_the_command_is_of_this_pythons_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert extras.hint("SCRAM", "scramp").endswith('-m pip install "minibroker[sasl]"')
    assert extras.hint("SCRAM", "scramp").startswith("SCRAM needs scramp: ")


def test_without_pip_no_pip_is_named_as_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the image."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    expected = f'SCRAM needs scramp: install "minibroker[sasl]" for {sys.executable}, which has no pip'
    assert extras.hint("SCRAM", "scramp") == expected
