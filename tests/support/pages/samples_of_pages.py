"""Programs that stand on a page."""

from __future__ import annotations

import re
from pathlib import Path

INTEGRATIONS = Path(__file__).resolve().parents[3] / "integrations"


def sample(page: Path, language: str) -> str:
    """The one block of a language on a page."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(code)
