"""Turns declarations into functions: one decoder and one encoder per message and version, one constructor per struct.

The functions are compiled on first use (about 0.3 ms) and carry their text as ``source``. Nothing in them locates an
error while all goes well; when one fails, the line it failed on leads to the field.
"""

from __future__ import annotations

import struct
from types import TracebackType
from typing import Any, cast

from minibroker_protocol.codegen_read import write_decoder
from minibroker_protocol.codegen_write import write_encoder
from minibroker_protocol.errors import EncodeError, Malformed
from minibroker_protocol.source import Broken, Decoder, Encoder
from minibroker_protocol.structs import Versioned


def compile_decoder(message: type[Versioned], version: int) -> Decoder:
    """Generate and compile the decoder of one version."""
    source = write_decoder(message, version)
    return cast(Decoder, source.compile(f"<decoder of {message.__name__} v{version}>"))


def compile_encoder(message: type[Versioned], version: int) -> Encoder:
    """Generate and compile the encoder of one version."""
    source = write_encoder(message, version)
    return cast(Encoder, source.compile(f"<encoder of {message.__name__} v{version}>"))


def malformed(message: type[Versioned], version: int, decoder: Decoder, error: Exception) -> Exception:
    """``Malformed`` naming the field that a decoder failed on, or the error itself if the bytes are not at fault."""
    if not isinstance(error, (Broken, struct.error, IndexError)):
        return error
    frame = _frame(error.__traceback__, decoder)
    if frame is None:
        return error
    line, local = frame
    path = _field(decoder.fields, line, len(local["buf"]) - local["pos"])
    what = str(error) if isinstance(error, Broken) else f"the bytes end at {len(local['buf'])}"
    return Malformed(f"{message.__name__} v{version}: {path}: {what}")


def unencodable(message: type[Versioned], version: int, encoder: Encoder, error: Exception) -> Exception:
    """What a failed encoder means, with the field that could not be written."""
    frame = _frame(error.__traceback__, encoder)
    if frame is None:
        return error
    line, _ = frame
    fields = encoder.fields.get(line, [])
    return EncodeError(f"{message.__name__} v{version}: {' or '.join(name for name, _ in fields) or '?'}: {error}")


def _frame(trace: TracebackType | None, function: Any) -> tuple[int, dict[str, Any]] | None:
    while trace is not None:
        if trace.tb_frame.f_code is function.__code__:
            return trace.tb_lineno, trace.tb_frame.f_locals
        trace = trace.tb_next
    return None


def _field(fields: dict[int, list[tuple[str, int]]], line: int, smallest_rest: int) -> str:
    """The field that does not fit into the remaining bytes, from the nearest generated line at or above `line` that
    reads fields."""
    while line > 0 and line not in fields:
        line -= 1
    candidates = fields.get(line) or [("?", 0)]
    for path, size in candidates:
        smallest_rest -= size
        if smallest_rest < 0:
            return path
    return candidates[-1][0]
