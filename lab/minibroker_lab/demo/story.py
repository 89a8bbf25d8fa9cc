"""The steps of the demo: members join, one becomes a zombie, one is killed, the others finish the work."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from minibroker.kernel.demo_progress import Progress
from minibroker.program import uninterrupted
from minibroker_lab.demo.member import QUIET, Member, MemberSettings

PARTITIONS = 4
FEED_PER_SECOND = 500
CALL_SECONDS = 30.0


class StoryFailed(Exception):
    """The story could not be told to its end; the text says where it broke off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorySettings:
    """`minimum` records are fed at least; `patience` is how long, in seconds, one step of the story may take."""

    bootstrap: str
    minimum: int
    session_timeout_ms: int
    transaction_timeout_ms: int
    patience: float
    seed: int


class Feeder(threading.Thread):
    """Feeds orders at a steady pace, so that there is work at any moment, until told that the story is over."""

    def __init__(self, bootstrap: str, topic: str, minimum: int) -> None:
        super().__init__(name="feeder", daemon=True)
        self.sent = 0
        self.error: str | None = None
        self._topic = topic
        self._minimum = minimum
        self._enough = threading.Event()
        self._abandoned = False
        self._producer = Producer(QUIET | {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})

    def run(self) -> None:
        start = time.monotonic()
        while self.error is None and not self._abandoned and not (self._enough.is_set() and self.sent >= self._minimum):
            due = int((time.monotonic() - start) * FEED_PER_SECOND) + 1
            while self.sent < due:
                self._send(self.sent)
            self._producer.poll(0.01)
        if self._abandoned:
            self._producer.purge()
        elif self._producer.flush(CALL_SECONDS):
            self.error = "the broker did not take all records"

    def finish(self, patience: float) -> None:
        """Stop as soon as the minimum is reached, and see that everything arrived."""
        self._enough.set()
        self.join(patience + self._minimum / FEED_PER_SECOND)
        if self.error or self.is_alive():
            raise StoryFailed(f"feeding failed: {self.error or 'not finished in time'}")

    def abandon(self) -> None:
        """Stop at once, also if records are missing."""
        self._abandoned = True
        self.join(CALL_SECONDS)

    def _send(self, number: int) -> None:
        order = json.dumps({"id": number, "amount": number * 7 % 1000}).encode()
        self._producer.produce(
            self._topic, order, partition=number % PARTITIONS, key=b"%d" % number, on_delivery=self._delivered
        )
        self.sent += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.error = str(error)


class Victim:
    """A member in a process of its own, which stalls inside a transaction and is killed there."""

    def __init__(self, settings: MemberSettings) -> None:
        self._process = subprocess.Popen(
            # -P: no module of the current directory, which may be a shared one.
            [sys.executable, "-P", "-m", "minibroker_lab.demo.member", json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C of a terminal is for the demo, which ends it
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def stall(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("stall\n")
        self._process.stdin.flush()

    def expect(self, word: str, seconds: float) -> None:
        """Wait until the process says this."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            line = ""
        if line != word:
            raise StoryFailed(f"the member to be killed said {line!r}, expected {word!r}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line.strip())


class Story:
    """Runs the whole loop; afterwards `source` and `target` hold what a reader may judge."""

    def __init__(self, settings: StorySettings, progress: Progress) -> None:
        token = uuid.uuid4().hex[:8]
        self.source = f"demo-orders-{token}"
        self.target = f"demo-results-{token}"
        self.group = f"demo-{token}"
        self._settings = settings
        self._progress = progress
        self._admin = AdminClient(QUIET | {"bootstrap.servers": settings.bootstrap})
        self._members: list[Member] = []
        self._threads: list[threading.Thread] = []
        self._zombie_stalled = threading.Event()
        self._zombie_wakes = threading.Event()
        self._feeder: Feeder | None = None

    @property
    def fenced_producers(self) -> int:
        return sum(member.fenced for member in self._members)

    def run(self) -> None:
        """Tell the story; StoryFailed when a step does not happen in time."""
        self._create_topics()
        feeder = self._feeder = Feeder(self._settings.bootstrap, self.source, self._settings.minimum)
        feeder.start()
        victim = None
        try:
            with uninterrupted():
                victim = Victim(self._member("victim", stall_with_offsets=True))
            steady = self._start(Member(self._member("steady", abort_rate=0.2)))
            zombie = self._start(Member(self._member("zombie"), on_stall=self._stall_zombie))
            self._await("two members committed", lambda: min(steady.committed, zombie.committed) >= 2)
            victim.expect("sharing", self._settings.patience)
            self._progress.event("three members share the work: steady, zombie and victim")
            zombie.stall.set()
            victim.stall()
            self._await("the zombie stalled", self._zombie_stalled.is_set)
            self._progress.event("zombie stalls inside a transaction")
            victim.expect("stalled", self._settings.patience)
        finally:
            if victim is not None:
                victim.kill()
        self._progress.event("victim is killed inside a transaction, its offsets pending")
        self._replace(zombie)
        feeder.finish(self._settings.patience)
        self._progress.event(f"all {feeder.sent} records are fed")
        self._await("the group committed all of them", lambda: self._all_committed(feeder.sent))
        self._stop_members()
        committed, aborted = self._counts()
        self._progress.event(f"all of them are processed: {committed} transactions committed, {aborted} aborted")

    def close(self) -> None:
        """End every member that still runs, in any case."""
        self._zombie_wakes.set()
        if self._feeder is not None:
            self._feeder.abandon()
        self._stop_members()

    def _create_topics(self) -> None:
        topics = [NewTopic(name, PARTITIONS, 1) for name in (self.source, self.target)]
        for name, made in self._admin.create_topics(topics).items():
            try:
                made.result(CALL_SECONDS)
            except TimeoutError:
                raise StoryFailed(f"the broker did not create topic {name} in {CALL_SECONDS:.0f} s") from None

    def _member(self, name: str, **more: Any) -> MemberSettings:
        # A successor has the transactional id of the member that it replaces, and so fences it.
        identity = name.removesuffix("-successor")
        return MemberSettings(
            name=name,
            bootstrap=self._settings.bootstrap,
            group=self.group,
            source=self.source,
            target=self.target,
            transactional_id=f"{self.group}-{identity}",
            session_timeout_ms=self._settings.session_timeout_ms,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            seed=self._settings.seed,
            **more,
        )

    def _start(self, member: Member) -> Member:
        thread = threading.Thread(target=member.run, name=member.settings.name, daemon=True)
        self._members.append(member)
        self._threads.append(thread)
        thread.start()
        return member

    def _stall_zombie(self) -> None:
        self._zombie_stalled.set()
        self._zombie_wakes.wait()

    def _replace(self, zombie: Member) -> None:
        """Start a second producer with the zombie's transactional.id, then let the zombie go on."""
        successor = self._start(Member(self._member("zombie-successor", abort_rate=0.2)))
        self._await("the zombie's successor took over", successor.ready.is_set)
        self._progress.event("zombie gets a successor with the same transactional.id")
        self._await("the successor committed", lambda: successor.committed > 0)
        self._zombie_wakes.set()
        known = zombie.committed
        self._await(
            "the zombie tried to commit", lambda: zombie.fenced or bool(zombie.error) or zombie.committed > known
        )
        self._progress.event("zombie wakes up, goes on and is fenced" if zombie.fenced else "zombie was NOT fenced")

    def _all_committed(self, sent: int) -> bool:
        self._show()
        wanted = ConsumerGroupTopicPartitions(
            self.group, [TopicPartition(self.source, index) for index in range(PARTITIONS)]
        )
        futures = self._admin.list_consumer_group_offsets([wanted])
        places = futures[self.group].result(CALL_SECONDS).topic_partitions
        done: int = sum(max(place.offset, 0) for place in places)
        return done >= sent

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._settings.patience
        while not condition():
            self._show()
            broken = [member for member in self._members if member.error]
            if broken:
                raise StoryFailed(f"member {broken[0].settings.name} broke: {broken[0].error}")
            if time.monotonic() > deadline:
                raise StoryFailed(f"waited {self._settings.patience:.0f} s for this: {what}")
            time.sleep(0.02)

    def _counts(self) -> tuple[int, int]:
        return sum(member.committed for member in self._members), sum(member.aborted for member in self._members)

    def _show(self) -> None:
        committed, aborted = self._counts()
        sent = self._feeder.sent if self._feeder is not None else 0
        self._progress.count(f"{sent} records fed, {committed} transactions committed, {aborted} aborted")

    def _stop_members(self) -> None:
        for member in self._members:
            member.stop()
        for thread in self._threads:
            thread.join(CALL_SECONDS)
