"""Errors of a running scenario and of the file it comes from."""

from minibroker.client.connection import BrokerFailed, ConnectionClosed, NoResponse

__all__ = ["ConnectionClosed", "NoResponse", "ScenarioError", "ScenarioFailed", "SetUpFailed"]

ScenarioFailed = BrokerFailed
"""The broker did something else than the scenario expects."""


class SetUpFailed(ScenarioFailed):
    """The broker answers the set-up otherwise, so that the scenario's subject was never asked. cause: the answer, in
    the words that every scenario has for it which it stops."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class ScenarioError(Exception):
    """The scenario itself is wrong: the text names the file, the scenario and the step."""
