"""What can go wrong while a scenario runs, and in the file it comes from."""


class ScenarioError(Exception):
    """The scenario itself is wrong: the text names the file, the scenario and the step."""


class ScenarioFailed(Exception):
    """The broker did something else than expected."""


class ConnectionClosed(ScenarioFailed):
    """The broker closed the connection, or it could not be made."""


class NoResponse(ScenarioFailed):
    """Nothing came within the time a step allows."""
