"""Responses as the buffers of their frames."""

from __future__ import annotations

import struct

from minibroker.requests.api import Api
from minibroker.requests.context import Frames, RequestContext
from minibroker_protocol.dsl import Response
from minibroker_protocol.headers import encode_response_header

_pack_size = struct.Struct(">i").pack
_SMALL_RESPONSE_BYTES = 4096


def framed(api: Api, version: int, correlation_id: int, response: Response) -> Frames:
    """A response frame, size prefix included."""
    buffers = response.encode_buffers(version, encode_response_header(api.key, version, correlation_id))
    if len(buffers) == 1:
        only = buffers[0]
        if len(only) <= _SMALL_RESPONSE_BYTES:
            return [_pack_size(len(only)) + only]
    return [_pack_size(sum(map(len, buffers))), *buffers]


def frames_of(api: Api, ctx: RequestContext, response: Response | None) -> Frames | None:
    """The frame of the response to a request; None for None. Calls the request's watchers."""
    frames = None if response is None else framed(api, ctx.api_version, ctx.correlation_id, response)
    return watched(ctx, response, frames)


def watched(ctx: RequestContext, response: Response | None, frames: Frames | None) -> Frames | None:
    """Call the watchers and return the frames."""
    if ctx.watchers:
        size = 0 if frames is None else sum(map(len, frames))
        for watcher in ctx.watchers:
            watcher(response, size)
    return frames
