"""The error of a fault rule or operation that is invalid."""


class FaultError(ValueError):
    """An invalid rule or operation. The text is one line with the reason."""
