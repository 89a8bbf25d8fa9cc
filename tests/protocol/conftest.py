"""For the tests of the protocol."""

from __future__ import annotations

import sys

import pytest

# kio makes strategies for its types where it finds Hypothesis. They are not used, and take a second in each process.
with pytest.MonkeyPatch.context() as hidden:
    hidden.setitem(sys.modules, "hypothesis.strategies", None)
    import kio.static.primitive  # noqa: F401
