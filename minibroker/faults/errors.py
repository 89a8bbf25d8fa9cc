"""The one exception for what cannot be done."""


class FaultError(ValueError):
    """A rule or an operation that cannot be; the text is one line that says why."""
