"""Errors of a running scenario and of the file it comes from."""

from minibroker.client.connection import BrokerFailed, ConnectionClosed, NoResponse

__all__ = ["ConnectionClosed", "NoResponse", "ScenarioError", "ScenarioFailed"]

ScenarioFailed = BrokerFailed
"""The broker did something else than the scenario expects."""


class ScenarioError(Exception):
    """The scenario itself is wrong: the text names the file, the scenario and the step."""
