"""The operations on a running cluster, as methods. Generated from `minibroker.faults.operations`:
``PYTHONPATH=tools python -m control_methods``."""

from __future__ import annotations

from typing import cast

from minibroker.control.command_group import CommandGroup

__tracebackhide__ = True  # pytest shows the line of the test


class State(CommandGroup):
    """Operations on what the brokers know: producer state, logs, epochs, markers, brokers, groups.

    Each returns once it is done. Raises FaultError for arguments that make no sense, ApiError for what the cluster
    refuses.
    """

    def create_topic(self, *, topic: str, partitions: int = 1, replication_factor: int = -1) -> None:
        """Create a topic (-1: the broker's default number of replicas); returns once its leaders are known."""
        self._ask("state.create_topic", topic=topic, partitions=partitions, replication_factor=replication_factor)

    def lose_producer_state(self, *, topic: str, partition: int, producer_id: int | None = None) -> list[int]:
        """Have the leader forget one producer id, or all it knows, as when its state was lost; the ids it knew."""
        return cast(
            "list[int]",
            self._ask("state.lose_producer_state", topic=topic, partition=partition, producer_id=producer_id),
        )

    def lose_producers(self, *, topic: str, partition: int, cause: str, offset: int | None = None) -> list[int]:
        """Have the leader lose producers the way `cause` does: expiration, retention, delete-records or lost-tail (from
        `offset` on); their ids."""
        return cast(
            "list[int]", self._ask("state.lose_producers", topic=topic, partition=partition, cause=cause, offset=offset)
        )

    def set_sequence(self, *, topic: str, partition: int, producer_id: int, last_sequence: int) -> None:
        """Have the leader remember `last_sequence` as a producer's last one, such as one before 2147483647."""
        self._ask(
            "state.set_sequence", topic=topic, partition=partition, producer_id=producer_id, last_sequence=last_sequence
        )

    def truncate_tail(self, *, topic: str, partition: int, offset: int) -> int:
        """Cut the leader's log at `offset`, as an unclean election would; the new end. Acknowledged records are
        gone."""
        return cast("int", self._ask("state.truncate_tail", topic=topic, partition=partition, offset=offset))

    def delete_records(self, *, topic: str, partition: int, offset: int = -1) -> int:
        """Move the log's start up to `offset` (-1: the high watermark), as DeleteRecords does; the new start."""
        return cast("int", self._ask("state.delete_records", topic=topic, partition=partition, offset=offset))

    def append_aborted(self, *, topic: str, partition: int, value: str = "aborted") -> int:
        """Have an aborted transaction of a producer of its own at the end of a partition, one record and its marker;
        the record's offset."""
        return cast("int", self._ask("state.append_aborted", topic=topic, partition=partition, value=value))

    def fail_disk(self, *, topic: str | None = None, partition: int | None = None, broker: int | None = None) -> None:
        """Have the leader's log of one partition refuse every write (KAFKA_STORAGE_ERROR), or the whole disk of a
        broker fail every write with an I/O error, until `heal_disk`."""
        self._ask("state.fail_disk", topic=topic, partition=partition, broker=broker)

    def fill_disk(self, *, broker: int | None = None) -> None:
        """Leave no room on the disk of a broker: every write of every log and file there fails with ENOSPC until
        `heal_disk`. (A Kafka whose only log directory fails ends; here `kill_broker` does that.)"""
        self._ask("state.fill_disk", broker=broker)

    def heal_disk(self, *, topic: str | None = None, partition: int | None = None, broker: int | None = None) -> None:
        """Undo `fail_disk` or `fill_disk`."""
        self._ask("state.heal_disk", topic=topic, partition=partition, broker=broker)

    def expire_transactional_id(self, *, transactional_id: str) -> None:
        """Have the coordinator forget an id, as after transactional.id.expiration.ms. Its transaction must have
        ended."""
        self._ask("state.expire_transactional_id", transactional_id=transactional_id)

    def set_producer_epoch(self, *, transactional_id: str, epoch: int) -> None:
        """Write down another producer epoch of a transactional id, such as 32766, the last one a client can have. The
        next InitProducerId goes on from there; a producer that is running is fenced. Its transaction must have ended;
        an id that is not known yet gets a producer id first."""
        self._ask("state.set_producer_epoch", transactional_id=transactional_id, epoch=epoch)

    def hold_markers(self, *, transactional_id: str | None = None) -> None:
        """Keep back the markers of one transactional id, or of all: its transaction stays in PrepareCommit or
        PrepareAbort."""
        self._ask("state.hold_markers", transactional_id=transactional_id)

    def release_markers(self, *, transactional_id: str | None = None) -> list[str]:
        """Send the markers that are kept back, of one transactional id or of all (and then keep back no more);
        which."""
        return cast("list[str]", self._ask("state.release_markers", transactional_id=transactional_id))

    def held_markers(self) -> list[str]:
        """Transactional ids whose markers are kept back."""
        return cast("list[str]", self._ask("state.held_markers"))

    def stop_broker(self, *, broker: int | None = None) -> None:
        """As SIGTERM."""
        self._ask("state.stop_broker", broker=broker)

    def kill_broker(self, *, broker: int | None = None, unnoticed: bool = False) -> None:
        """As SIGKILL: nothing is flushed or closed. `unnoticed`: the controller learns of it when the session ends."""
        self._ask("state.kill_broker", broker=broker, unnoticed=unnoticed)

    def start_broker(self, *, broker: int | None = None) -> None:
        """Bring a stopped or killed broker back."""
        self._ask("state.start_broker", broker=broker)

    def restart_broker(self, *, broker: int | None = None, clean: bool = True) -> None:
        """Stop, or without `clean` kill, a broker and bring it back at once, with what its disk holds."""
        self._ask("state.restart_broker", broker=broker, clean=clean)

    def pause_broker(self, *, broker: int | None = None) -> None:
        """As SIGSTOP: it keeps its connections and takes new ones, and does and answers nothing."""
        self._ask("state.pause_broker", broker=broker)

    def resume_broker(self, *, broker: int | None = None) -> None:
        """As SIGCONT: what came in while it was paused is done now, in the order it came."""
        self._ask("state.resume_broker", broker=broker)

    def rebalance_group(self, *, group: str) -> None:
        """Have the members of a group rebalance, as when one joins: they learn of it by their next heartbeats. Offsets
        of the generation before are refused once the members have joined again; a KIP-848 group gets its next epoch,
        and takes offsets of an older one for partitions that have not moved since (KIP-1251)."""
        self._ask("state.rebalance_group", group=group)

    def remove_member(self, *, group: str, member: str | None = None) -> list[str]:
        """Throw members out of a group, as when their sessions end; their ids. member: what member ids, client ids or
        group.instance.ids match (``*`` and ``?``); it may be left out where there is one member."""
        return cast("list[str]", self._ask("state.remove_member", group=group, member=member))

    def restore(self) -> None:
        """Undo what lasts: a stopped controller, cut links, failing disks, brokers that are paused or gone, held
        markers. Rules and the clock are left as they are."""
        self._ask("state.restore")

    def stop_controller(self) -> None:
        """Leave the cluster without an active controller: no elections, and requests for it wait."""
        self._ask("state.stop_controller")

    def start_controller(self) -> None:
        """The next active controller, which begins with the metadata journal."""
        self._ask("state.start_controller")

    def cut_link(self, *, one: int, other: int) -> None:
        """Let nothing pass between two brokers, or a broker and the controller (-1), and tell neither."""
        self._ask("state.cut_link", one=one, other=other)

    def mend_link(self, *, one: int, other: int) -> None:
        """Let messages pass again; held ones arrive if their sender still waits."""
        self._ask("state.mend_link", one=one, other=other)

    def move_leader(self, *, topic: str, partition: int, to: int) -> None:
        """Have broker `to` lead a partition."""
        self._ask("state.move_leader", topic=topic, partition=partition, to=to)

    def move_coordinator(self, *, to: int, transactional_id: str | None = None, group: str | None = None) -> None:
        """Have broker `to` coordinate a transactional id or a group."""
        self._ask("state.move_coordinator", to=to, transactional_id=transactional_id, group=group)
