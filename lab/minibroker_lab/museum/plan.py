"""The plan of a case: passes its steps to a client's program one after the other, and writes their history.

    python -m minibroker_lab.museum.plan '["open tx", "begin", "send a", "commit"]' PROGRAM ARGUMENT …

The program, `museum/programs/steps*`, reads steps from its standard input and answers each with ``ok`` or ``error
TEXT``. In between it prints ``ack VALUE`` or ``nack VALUE TEXT`` for a record it sent, and ``read VALUE PARTITION
OFFSET`` for one it received. Other lines are passed on to stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue

from minibroker.kernel.words import near
from minibroker.output import say

TOPIC = "orders"
OPEN, SEND, INSIST, TRANSACT, SLEEP = "open", "send", "insist", "transact", "sleep"
COMMIT, ABORT = "commit", "abort"
_ENDS = (COMMIT, ABORT)
_NEED = {OPEN: (0, 1), SEND: (1, 1), INSIST: (1, 1), TRANSACT: (1, 1), SLEEP: (1, 1), "read": (1, 1)}
_ALONE = ("begin", "flush", *_ENDS)
_AGAIN_SECONDS = 0.3
_ENDING_SECONDS = 5.0
_TRIES = 20


def check(step: str) -> None:
    """Raises ValueError for an invalid step."""
    word, *rest = step.split(" ")
    if word not in _NEED and word not in _ALONE:
        raise ValueError(f"there is no step {word!r}{near(word, [*_NEED, *_ALONE])}")
    least, most = _NEED.get(word, (0, 0))
    if not least <= len(rest) <= most or "" in rest:
        raise ValueError(f"the step {word!r} has {('no word', 'one word')[most]} behind it, not {step!r}")
    if word == SLEEP:
        float(rest[0])
    if word in (SEND, INSIST):
        _record(rest[0])


def _record(text: str) -> tuple[str, int]:
    """``VALUE`` or ``VALUE@PARTITION``."""
    value, _, partition = text.partition("@")
    return value, int(partition or 0)


class StepFailed(Exception):
    """A step failed; the text is the client's."""


class Ended(Exception):
    """The program ended before its plan did."""


class GaveUp(Exception):
    """The client has returned an error for the same step `_TRIES` times; the text is the last one."""


class Program:
    """A client's program in a process of its own."""

    def __init__(self, command: Sequence[str], history: History, again_seconds: float) -> None:
        self._history, self._again_seconds = history, again_seconds
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
        )
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        self._written: dict[str, bool] = {}
        self._news = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def do(self, *steps: str) -> None:
        """Send all steps at once and wait for their answers. Raises StepFailed with the first that failed."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write("".join(f"{step}\n" for step in steps))
            self._child.stdin.flush()
        except BrokenPipeError:
            raise Ended from None
        answers = [self._answers.get() for _ in steps]
        if None in answers:
            raise Ended
        for answer in answers:
            if answer:
                raise StepFailed(answer)

    def written(self, value: str) -> bool | None:
        """Whether the record was written; None if the client has not reported it after a short wait."""
        with self._news:
            self._news.wait_for(lambda: value in self._written, self._again_seconds)
            return self._written.pop(value, None)

    def end(self) -> int:
        """Close its input and return its exit status; 0 if it must be killed."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            return self._child.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()  # all its steps are done
            self._child.wait()
            return 0
        finally:
            self._listener.join(_ENDING_SECONDS)

    def _listen(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            for line in lines:
                self._hear(line)
        self._answers.put(None)

    def _hear(self, line: str) -> None:
        word, _, text = line.rstrip().partition(" ")
        if word == "ok":
            self._answers.put("")
        elif word == "error":
            self._answers.put(text or word)
        elif word in ("ack", "nack"):
            value = text.partition(" ")[0]
            if word == "ack":
                self._history.tell("ack", value=value)
            else:
                say(text, flush=True)
            with self._news:
                self._written[value] = word == "ack"
                self._news.notify_all()
        elif word == "read":
            value, partition, offset = text.split(" ")
            self._history.tell("read", value=value, partition=int(partition), offset=int(offset))
        else:
            say(line.rstrip("\n"), flush=True)


class History:
    """The client's history, in the format that the judge reads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()

    def tell(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, "topic": TOPIC, **fields})
        with self._lock, open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


class Tries:
    """Counts the errors of a step that is tried again and again."""

    def __init__(self) -> None:
        self._errors = 0

    def failed(self, step: str, error: object) -> None:
        """Say what went wrong. Raises GaveUp at the last try."""
        say(f"{step}: {error}", flush=True)
        self._errors += 1
        if self._errors == _TRIES:
            raise GaveUp(f"{step} failed {_TRIES} times, at last with {error}")


class Plan:
    """Runs the steps. When a step of a transaction fails, the transaction is aborted and the rest of its steps are left
    out; when the abort fails too, a new producer is opened. What is tried again is given up after `_TRIES` errors."""

    def __init__(self, steps: Sequence[str], program: Program, history: History, again_seconds: float) -> None:
        self._steps = list(steps)
        self._again_seconds = again_seconds
        self._program = program
        self._history = history
        self._identity = ""
        self._transaction = -1

    def follow(self) -> None:
        """Run all steps. Raises Ended and GaveUp."""
        while self._steps:
            step = self._steps.pop(0)
            word, _, what = step.partition(" ")
            try:
                self._do(word, what)
            except StepFailed as failed:
                say(f"{step}: {failed}", flush=True)
                if self._identity:
                    self._give_up()
                    if word not in _ENDS:
                        self._leave_out()

    def _do(self, word: str, what: str) -> None:
        if word == OPEN:
            self._identity = what
            self._open()
        elif word == "begin":
            self._begin()
        elif word == SEND:
            self._send([what, *self._more()])
        elif word == INSIST:
            self._insist(what)
        elif word == TRANSACT:
            tries = Tries()
            while not self._transacted(what, tries):
                pass
        elif word == SLEEP:
            time.sleep(float(what))
        else:
            self._program.do(f"{word} {what}".strip())
            if word in _ENDS:
                self._ended(word)

    def _open(self) -> None:
        tries = Tries()
        while True:
            try:
                return self._program.do(f"{OPEN} {self._identity}".strip())
            except StepFailed as failed:
                tries.failed(OPEN, failed)

    def _begin(self) -> None:
        self._transaction += 1
        self._program.do("begin")

    def _more(self) -> list[str]:
        """The send steps that follow directly: their records are sent at the same time."""
        values = []
        while self._steps and self._steps[0].startswith(f"{SEND} "):
            values.append(self._steps.pop(0).partition(" ")[2])
        return values

    def _send(self, records: Sequence[str]) -> None:
        inside = {"transaction": self._transaction} if self._identity else {}
        steps = []
        for value, partition in map(_record, records):
            self._history.tell("send", value=value, **inside)
            steps.append(f"{SEND} {value} {partition}")
        self._program.do(*steps)

    def _insist(self, record: str) -> None:
        """Send it until it is acknowledged."""
        value, partition = _record(record)
        inside = {"transaction": self._transaction} if self._identity else {}
        self._history.tell("send", value=value, **inside)
        tries = Tries()
        while True:
            written = None
            try:
                self._program.do(f"{SEND} {value} {partition}")
            except StepFailed as failed:
                tries.failed(value, failed)
            else:
                while written is None:
                    try:
                        self._program.do("flush")  # some clients report records only then
                    except StepFailed as failed:
                        tries.failed(value, failed)
                    written = self._program.written(value)
                if written:
                    return
                tries.failed(value, "not written")
            time.sleep(self._again_seconds)

    def _transacted(self, name: str, tries: Tries) -> bool:
        """One record in a transaction of its own; False when it was not committed."""
        try:
            self._begin()
            self._send([f"{name}.{self._transaction}"])
            self._program.do(COMMIT)
            self._ended(COMMIT)
            return True
        except StepFailed as failed:
            tries.failed(name, failed)
        try:
            self._program.do(ABORT)
            self._ended(ABORT)
        except StepFailed as failed:
            say(f"{ABORT}: {failed}", flush=True)
            time.sleep(self._again_seconds)
        return False

    def _ended(self, outcome: str) -> None:
        self._history.tell("end", transaction=self._transaction, outcome=outcome)

    def _give_up(self) -> None:
        try:
            self._program.do(ABORT)
            self._ended(ABORT)
        except StepFailed as failed:
            say(f"{ABORT}: {failed}", flush=True)
            self._open()

    def _leave_out(self) -> None:
        while self._steps and self._steps.pop(0) not in _ENDS:
            pass


def main(steps: Sequence[str], command: Sequence[str], again_seconds: float = _AGAIN_SECONDS) -> int:
    """0, or 1 when the program ended too early or made no progress. again_seconds: the wait before another try."""
    history = History(os.environ["MINIBROKER_HISTORY"])
    program = Program(command, history, again_seconds)
    try:
        Plan(steps, program, history, again_seconds).follow()
    except Ended:
        say("the program ended before its plan", flush=True)
        program.end()
        return 1
    except GaveUp as last:
        history.tell("give up", reason=str(last))
        program.end()
        return 1
    return program.end()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
