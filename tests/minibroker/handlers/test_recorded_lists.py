"""Long lists are answered byte by byte as they were recorded (`tests/support/recordings/long_lists.py`).

The recording is of handlers that went through each list by themselves, before one link of the chain cut them.
"""

from __future__ import annotations

import pytest
from long_lists import ALL, SOME, answer, forms_of, named_places, recorded

PLACES = named_places()
GOLDEN = recorded()
SAMPLE = [
    ("AddPartitionsToTxn.transactions.topics.partitions", "once"),
    ("DeleteGroups.groups_names", "twice"),
    ("DescribeConfigs.resources", "once"),
    ("DescribeProducers.topics.partition_indexes", "one-topic"),
    ("FindCoordinator.coordinator_keys", "guarded"),
    ("ListOffsets.topics.partitions", "twice"),
    ("Metadata.topics", "twice"),
    ("OffsetCommit.topics", "twice"),
    ("OffsetDelete.topics.partitions", "twice"),
    ("OffsetFetch.groups.topics.partition_indexes", "once"),
    ("OffsetForLeaderEpoch.topics", "once"),
    ("Produce.topic_data.partition_data", "twice"),
    ("TxnOffsetCommit.topics.partitions", "once"),
    ("WriteTxnMarkers.markers", "twice"),
]


def test_every_list_is_recorded() -> None:
    """Who adds a list records it."""
    assert {name: forms_of(place) for name, place in PLACES.items()} == {
        name: list(counts[str(SOME)]) for name, counts in GOLDEN.items()
    }


@pytest.mark.parametrize(("name", "form"), SAMPLE)
def test_a_long_list_is_answered_as_it_was(name: str, form: str) -> None:
    assert answer(PLACES[name], form, SOME) == GOLDEN[name][str(SOME)][form]


@pytest.mark.matrix
@pytest.mark.parametrize("name", PLACES)
def test_every_long_list_is_answered_as_it_was(name: str) -> None:
    assert {form: answer(PLACES[name], form, SOME) for form in forms_of(PLACES[name])} == GOLDEN[name][str(SOME)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, counts in GOLDEN.items() if str(ALL) in counts])
def test_every_very_long_list_is_answered_as_it_was(name: str) -> None:
    assert {form: answer(PLACES[name], form, ALL) for form in forms_of(PLACES[name])} == GOLDEN[name][str(ALL)]
