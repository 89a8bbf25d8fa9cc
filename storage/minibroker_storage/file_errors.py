"""One clear error for a file whose content does not have the format of its name."""

from minibroker_protocol.errors import Malformed

_LONGEST = 300


def shortened(text: str) -> str:
    """The text of an error, which may hold a part of a file: no longer than a line should be."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


class MalformedFile(Malformed):
    """A file of the data directory is broken: which, where (byte offset, or line of a text file), what was expected."""

    def __init__(self, path: str, position: int, expected: str, *, unit: str = "byte") -> None:
        super().__init__(shortened(f"{path}, {unit} {position}: {expected}"))
        self.path = path
        self.position = position
        self.expected = expected
