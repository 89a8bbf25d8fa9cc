"""Every exchange to a file, as JSON lines with the bytes of its frames, for `minibroker replay` and `trace view`."""

from __future__ import annotations

import json
import os
import queue
import threading
from contextlib import suppress
from typing import IO, Final

from minibroker.kernel.logs import get_logger
from minibroker.kernel.words import counted, reason
from minibroker.trace.recorder import Recorded

log = get_logger(__name__)

MOST_BYTES: Final = 100_000_000
FILES_KEPT: Final = 10
_MOST_WAITING: Final = 10_000
"""Exchanges that wait to be written. With more, which a disk is too slow for, further ones are left out and counted."""
_MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
"""The same, of their frames."""
_WITH_RECORDS: Final = ("Produce", "Fetch", "ShareFetch")
_END: Final = None


class TraceFile:
    """Writes on a thread of its own. At `most_bytes` the file becomes ``PATH.1``, that one ``PATH.2``, up to `kept`.

    contents: False to leave out the frames of requests and answers that have records, and with them every key and
    value; the headers of their batches stay. Raises OSError for a path that cannot be written.
    """

    def __init__(
        self,
        path: str,
        *,
        contents: bool = True,
        most_bytes: int = MOST_BYTES,
        kept: int = FILES_KEPT,
        most_waiting_bytes: int = _MOST_WAITING_BYTES,
    ) -> None:
        self._path = path
        self._contents = contents
        self._most_bytes = most_bytes
        self._kept = kept
        self._file = self._opened()
        self._waiting: queue.Queue[Recorded | None] = queue.Queue()
        self._most_waiting_bytes = most_waiting_bytes
        # Each is changed by one thread only, so neither needs a lock.
        self._added_bytes = 0
        self._taken_bytes = 0
        self.left_out = 0
        self._thread = threading.Thread(target=self._write_all, name="minibroker-record", daemon=True)
        self._thread.start()

    def add(self, recorded: Recorded) -> None:
        """An exchange is over (`recorder.Listener`)."""
        waiting = self._added_bytes - self._taken_bytes
        full = waiting > 0 and waiting + _size(recorded) > self._most_waiting_bytes
        if full or self._waiting.qsize() >= _MOST_WAITING or not self._thread.is_alive():
            self.left_out += 1
        else:
            self._added_bytes += _size(recorded)
            self._waiting.put(recorded)

    def close(self) -> None:
        """Returns once everything is written."""
        self._waiting.put(_END)
        self._thread.join()
        with suppress(OSError):  # the writing thread has logged it
            self._file.close()
        if self.left_out:
            lacks = counted(self.left_out, "exchange")
            log.warning("%s lacks %s besides, for which the disk was too slow or full", self._path, lacks)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        try:
            while (recorded := self._waiting.get()) is not _END:
                line = self._line(recorded)
                self._taken_bytes += _size(recorded)
                self._write(line)
            self._file.flush()
        except OSError as error:
            log.error("%s is no longer written, and lacks the exchanges that came last: %s", self._path, reason(error))

    def _line(self, recorded: Recorded) -> str:
        frames = recorded.frames()
        if not self._contents and recorded.api in _WITH_RECORDS:
            frames = dict.fromkeys(frames)
        return json.dumps({**recorded.to_json(), **frames}) + "\n"

    def _write(self, line: str) -> None:
        if self._file.tell() + len(line) > self._most_bytes and self._file.tell():
            self._rotate()
        self._file.write(line)
        if self._waiting.empty():
            self._file.flush()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._kept - 1, 0, -1):
            if os.path.exists(f"{self._path}.{number}"):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        self._file = self._opened()

    def _opened(self) -> IO[str]:
        return open(self._path, "w", encoding="ascii")


def _size(recorded: Recorded) -> int:
    return recorded.request_size + recorded.response_size
