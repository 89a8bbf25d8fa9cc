"""The hash of Kafka's clients (`org.apache.kafka.common.utils.Utils.murmur2`), for many keys at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(keys: Any) -> npt.NDArray[np.int32]:
    """The hashes of an Arrow array of binary; of a null as of no bytes."""
    array = keys.cast(pa.binary()).fill_null(b"")
    _, positions, content = array.buffers()
    edges = np.frombuffer(positions, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    # Reading past the end of the last key must not fail.
    data = np.append(np.frombuffer(content or b"", np.uint8), np.zeros(4, np.uint8)).astype(np.uint32)
    starts, lengths = edges[:-1], np.diff(edges)
    hashes: npt.NDArray[np.uint32] = np.bitwise_xor(lengths.astype(np.uint32), _SEED)
    words = lengths // 4
    longer = np.flatnonzero(words)
    for number in range(int(words.max(initial=0))):
        longer = longer[words[longer] > number]
        at = starts[longer] + 4 * number
        word = data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24
        word = word * _M
        word = (word ^ word >> 24) * _M
        hashes[longer] = hashes[longer] * _M ^ word
    tail, rest = starts + 4 * words, lengths % 4
    for number in (2, 1, 0):
        hashes ^= np.where(rest > number, data[np.minimum(tail + number, len(data) - 1)] << 8 * number, 0).astype(
            np.uint32
        )
    hashes[rest > 0] *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes.view(np.int32)


def positive_murmur2(keys: pa.Array) -> pa.Array:
    """The hash without its sign: a key's partition is the remainder by their number (`BuiltInPartitioner`)."""
    return pa.array(murmur2(keys) & _POSITIVE, pa.int32())
