"""What is a pattern to Java, as Java said, and never more than linear work."""

from __future__ import annotations

from collections.abc import Callable

import pattern_engines
import pytest
from calls import Calls

from minibroker.config.client_metrics import validate_client_metrics
from minibroker.config.java_patterns import is_java_pattern
from minibroker.config.types import ConfigError


def test_java_compiles_the_same() -> None:
    rows = pattern_engines.read("java")
    assert len(rows) > 500
    assert [(text, answer) for text, _, answer in rows if is_java_pattern(text) != (answer != "refused")] == []


@pytest.mark.parametrize("text", ["(?:a" * 101 + ")" * 101, "[a" * 101 + "]" * 101, "[a&&" * 101 + "b" + "]" * 101])
def test_what_is_nested_deep_is_refused(text: str) -> None:
    assert not is_java_pattern(text)


def work_of(text: str) -> int:
    with Calls() as calls:
        is_java_pattern(text)
    return calls.count


GROWING: list[tuple[str, Callable[[int], str]]] = [
    ("a literal", lambda n: "a" * n),
    ("a class", lambda n: f"[{'a-c' * n}]"),
    ("classes", lambda n: "[a-c]" * n),
    ("alternatives", lambda n: "|".join("topic" for _ in range(n))),
    ("groups", lambda n: "(a)?" * n),
    ("names", lambda n: "".join(f"(?<n{number}>a)" for number in range(n))),
    ("a name", lambda n: f"(?<{'n' * n}>a)"),
    ("a quotation", lambda n: rf"\Q{'a.' * n}\E"),
    ("quotations", lambda n: r"\Qa\E" * n),
    ("comments", lambda n: "(?x)" + "a # b\n" * n),
    ("spaces", lambda n: "(?x)a" + " " * n),
    ("properties", lambda n: r"\p{Lu}" * n),
    ("a property", lambda n: rf"\p{{Is{'a' * n}}}"),
    ("digits", lambda n: "a{" + "0" * n + "1}"),
    ("a number", lambda n: r"\x{" + "0" * n + "41}"),
]


@pytest.mark.parametrize(("what", "text"), GROWING, ids=[what for what, _ in GROWING])
def test_work_grows_with_the_text_and_not_faster(what: str, text: Callable[[int], str]) -> None:
    assert is_java_pattern(text(500)), what
    assert work_of(text(2000)) < 4.5 * work_of(text(500)) + 500, what


@pytest.mark.parametrize(
    "text",
    ["client_id=a", " client_id = a ", "client_id=a==", r"client_id=\p{IsGreek}", "client_id=a++"],
)
def test_matches_that_kafka_takes(text: str) -> None:
    validate_client_metrics({"match": text})


@pytest.mark.parametrize(
    "text",
    [
        *(
            "client_id",
            "client_id=",
            "client_id==",
            "=a",
            "nope=a",
            "client_id=a=b",
            "client_id=(?=a)",
            "client_id=a**",
        ),
        *(
            r"client_id=\p{Greek}",
            "client_id={",
            "client_id=(?P<n>a)",
            "client_id=a{99999999999}",
            "client_id= ",
        ),
    ],
    ids=lambda text: text[:20],
)
def test_matches_that_kafka_refuses(text: str) -> None:
    """As ClientMetricsConfigs.parseMatchingPatterns of Kafka 4.4.0 said."""
    with pytest.raises(ConfigError, match=r"^Illegal client matching pattern: ") as refused:
        validate_client_metrics({"match": text})
    assert refused.value.__context__ is None
