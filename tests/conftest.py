"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# How long one example takes says nothing about the code on a machine that does other things as well.
settings.register_profile("patient", parent=settings(), deadline=None)
settings.load_profile("patient")
