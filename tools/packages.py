"""The packages of the wheel and the folders that hold them, from pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
PACKAGES: Final[dict[str, Path]] = {Path(path).name: ROOT / path for path in _WHEEL["packages"]}
"""Package to its folder."""
PLACES: Final = tuple(dict.fromkeys(path.parent for path in PACKAGES.values()))
"""What a search path must have."""
TOPS: Final = tuple(path.relative_to(ROOT).parts[0] for path in PACKAGES.values())
"""The folders of the top level that hold source, as a path in a page begins."""
