"""Options of the source `kafka-topics`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from minibroker.client.security import Security
from minibroker.client.topics import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from minibroker_pipeline.topic_options import Bound, Subscription, TopicOptions, option_names, topic_options

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "topics-on-spark.md"
TOPIC = {"bootstrap": "h:1", "subscribe": "t"}


def parsed(streaming: bool = True, **options: str) -> TopicOptions:
    return topic_options({**TOPIC, **options}, streaming=streaming)


def test_defaults() -> None:
    made = parsed()
    assert made == TopicOptions("h:1", Subscription(("t",)), READ_COMMITTED, made.starting, made.ending)
    assert (made.starting.everywhere, made.ending.everywhere) == (EARLIEST, LATEST)
    assert (made.fail_on_data_loss, made.include_headers, made.max_delay_ms) == (True, False, 900_000)
    assert pickle.loads(pickle.dumps(made)) == made


def test_names_of_the_connector_and_short_ones_are_the_same() -> None:
    connector = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": " a, b,a",
        "kafka.isolation.level": "read_uncommitted",
        "kafka.security.protocol": "SSL",
        "kafka.client.id": "me",
        "STARTINGOFFSETS": "Latest",
        "minOffsetsPerTrigger": "5",
        "maxOffsetsPerTrigger": "10",
        "maxTriggerDelay": "2 min",
    }
    made = topic_options(connector, streaming=True)
    assert made.subscription.names() == ["a", "b"]
    assert made.isolation == READ_UNCOMMITTED
    assert made.security == Security(tls=True)
    assert (made.client_id, made.starting.everywhere) == ("me", LATEST)
    assert (made.min_offsets, made.max_offsets, made.max_delay_ms) == (5, 10, 120_000)
    short = {"bootstrap": "h:1", "topics": "a,b", "isolation": "read_uncommitted"}
    assert topic_options(short, streaming=True).subscription == made.subscription


def test_which_partitions() -> None:
    places = [("a", 0), ("a", 1), ("b", 0)]
    pattern = topic_options({"bootstrap": "h:1", "subscribePattern": "or.*"}, streaming=True).subscription
    assert pattern.names() is None
    assert pattern.matching(["orders", "for", "or"]) == ["or", "orders"]
    assert Subscription(pattern="or").matching(["orders", "or"]) == ["or"]
    assigned = topic_options({"bootstrap": "h:1", "assign": '{"b": [0], "a": [1]}'}, streaming=True).subscription
    assert assigned.names() == ["a", "b"]
    assert assigned.chosen(places) == [("a", 1), ("b", 0)]
    assert parsed().subscription.chosen(places) == places
    with pytest.raises(ValueError, match="assign: topic b has no partition 0"):
        assigned.chosen([*places[:2], ("b", 1)])


def test_where_reading_begins_by_precedence() -> None:
    offsets = '{"t": {"0": 5, "1": -1, "2": -2}}'
    options = {"startingOffsets": offsets}
    bound = parsed(**options).starting
    assert [bound.at("t", number) for number in range(3)] == [5, LATEST, EARLIEST]
    assert not bound.by_time
    options["startingOffsetsByTimestamp"] = '{"t": {"0": 77}}'
    bound = parsed(**options).starting
    assert (bound.at("t", 0), bound.by_time, bound.or_latest) == (77, True, False)
    options["startingTimestamp"] = "99"
    bound = parsed(**options, startingOffsetsByTimestampStrategy="latest").starting
    assert (bound.at("t", 7), bound.by_time, bound.or_latest) == (99, True, True)
    ending = parsed(False, endingOffsets='{"t": {"0": -1}}').ending
    assert (ending.at("t", 0), ending.or_latest) == (LATEST, False)


def test_a_bound_by_partition_names_all() -> None:
    bound = Bound("startingOffsets", each={"t": {0: 1, 1: 2}})
    bound.check([("t", 0), ("t", 1)])
    with pytest.raises(ValueError, match="startingOffsets must name every partition: t-2 is missing"):
        bound.check([("t", 0), ("t", 1), ("t", 2)])
    with pytest.raises(ValueError, match="startingOffsets: t-1 is not read, or not in the cluster"):
        bound.check([("t", 0)])


@pytest.mark.parametrize(
    ("options", "streaming", "said"),
    [
        ({"maxOffsets": "10"}, True, "option maxOffsets is not there; there are bootstrap, subscribe"),
        ({"kafka.max.poll.records": "10"}, True, r"option kafka\.max\.poll\.records is not there"),
        ({"kafka.group.id": "g"}, True, "no consumer group is used"),
        ({"fetchOffset.numRetries": "3"}, True, "timeoutMs says how long"),
        ({"endingOffsets": "latest"}, True, "endingOffsets is for tables"),
        ({"maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger is for streams"),
        ({"failOnDataLoss": "no"}, True, "failOnDataLoss 'no' is none of true, false"),
        ({"startingOffsets": "5"}, True, "startingOffsets '5' is none of earliest, latest and no JSON object"),
        ({"startingOffsets": "latest"}, False, "latest, or -1, is for streams"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, False, "latest, or -1, is for streams"),
        ({"endingOffsets": "earliest"}, False, "endingOffsets 'earliest' is none of latest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, False, "endingOffsets: t: '0': -2; expected as"),
        ({"startingOffsets": '{"t": {"0": true}}'}, True, "startingOffsets: t: '0': True; expected as"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, True, "startingOffsets: t: 'x': 1; expected as"),
        ({"startingOffsets": '{"t": [1]}'}, True, "startingOffsets=.*: expected JSON as"),
        ({"startingOffsets": "{"}, True, "startingOffsets={: expected JSON as"),
        ({"startingTimestamp": "-5"}, True, "startingTimestamp=-5: expected milliseconds since 1970"),
        ({"isolation": "5"}, True, "isolation '5' is none of read_committed, read_uncommitted"),
        ({"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"}, True, "set twice"),
        ({"timeoutMs": "0"}, True, "timeoutMs=0: expected a whole number from 1"),
        ({"minPartitions": "-3"}, True, "minPartitions=-3: expected a whole number from 1"),
        ({"maxTriggerDelay": "soon"}, True, "maxTriggerDelay=soon: expected a number with one of ms, s"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, True, "=5 is more than maxOffsetsPerTrigger=4"),
        ({"subscribe": ""}, True, "one of subscribe, subscribePattern and assign is needed, not none"),
        ({"subscribe": " ,"}, True, "no topic"),
        ({"assign": '{"t": [0]}'}, True, "is needed, not subscribe and assign"),
        ({"subscribe": "", "assign": '{"t": [-1]}'}, True, "assign=.*: expected JSON as"),
        ({"subscribe": "", "subscribePattern": "("}, True, "subscribePattern '\\(': missing"),
        ({"bootstrap": ""}, True, r"the option bootstrap, or kafka\.bootstrap\.servers, is needed"),
        ({"kafka.ssl.nonsense": "x"}, True, r"ssl\.nonsense: not known here"),
    ],
)
def test_what_is_refused(options: dict[str, Any], streaming: bool, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed(streaming, **options)


def test_the_page_has_every_option() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in option_names() if f"`{name}`" not in text] == []
