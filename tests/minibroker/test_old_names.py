"""Import paths that the documentation of 0.1 taught."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("minibroker.transactions_client", "minibroker.client.transactions"),
        ("minibroker.audit.rules", "minibroker.rules.rules"),
        ("minibroker.audit.scan", "minibroker.rules.scan"),
        ("minibroker.audit.java", "minibroker_pipeline.java"),
        ("minibroker.audit.source", "minibroker_pipeline.source"),
        ("minibroker.audit.topic_source", "minibroker_pipeline.topic_source"),
    ],
)
def test_an_old_name_is_the_new_module_and_says_so(old: str, new: str) -> None:
    if "source" in old:
        pytest.importorskip("pyspark")
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        found = import_module(old)
    assert found is import_module(new)
