"""The two kinds of API. There is no third.

*Each*: the items of the request's list are independent, and the answer has no error beside theirs. The link `Slices`
gives the handler one slice after the other and joins the answers. *Whole*: the list is one act, such as a batch for
one log, or a refusal of all for the sake of one. Its handler prepares it with `slices.in_slices`, acts at once, and
answers in slices again.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Each(NamedTuple):
    """An API whose items are independent of each other.

    items: the list in the request, "topics.partitions" for one in each item of another.
    once: an item that is named again is left out (Kafka keeps a set).
    changes: it changes something, so it is done to its end for a client that did not wait, as Kafka does what it has
        received.
    cost: how many elements an item counts as; a turn of the loop has room for `STEPS_AT_ONCE` elements.

    The answer has one result for each item, in a list of the same depth.
    """

    items: str
    once: bool = False
    changes: bool = False
    cost: int = 1


class Whole(NamedTuple):
    """An API whose request is one act, with or without a list."""


WHOLE: Final = Whole()
Kind = Each | Whole
