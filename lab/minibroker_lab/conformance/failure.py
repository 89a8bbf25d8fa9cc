"""Errors of a running scenario and of the file it comes from."""

from minibroker.client.connection import BrokerFailed, ConnectionClosed, NoResponse

from .weight import RECOVERY, Breach

__all__ = [
    "ConnectionClosed",
    "Differs",
    "NoResponse",
    "NotApplicable",
    "ScenarioError",
    "ScenarioFailed",
    "SetUpFailed",
]

ScenarioFailed = BrokerFailed
"""The broker did something else than the scenario expects."""


class Differs(ScenarioFailed):
    """An answer is not as expected, and what that breaks."""

    def __init__(self, message: str, breach: Breach) -> None:
        super().__init__(message)
        self.breach = breach


class SetUpFailed(Differs):
    """The broker answers the set-up otherwise, so that the scenario's subject was not reached.

    cause: the answer, in the same words for every scenario that it stops.
    """

    def __init__(self, message: str, cause: str, breach: Breach = RECOVERY) -> None:
        super().__init__(message, breach)
        self.cause = cause


class NotApplicable(Exception):
    """The broker lawfully lacks what the scenario is about, as this answer shows."""


class ScenarioError(Exception):
    """The scenario itself is wrong: the text names the file, the scenario and the step."""
