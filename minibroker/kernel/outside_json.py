"""JSON from files, options and requests. As Python's parser: NaN is a number, and the last of equal keys counts."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The parsed value. Raises ValueError for invalid JSON, and for JSON nested too deeply for the parser."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
