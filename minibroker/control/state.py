"""The operations on a running cluster, as methods. Generated from `minibroker.faults.operations`:
``PYTHONPATH=tools python -m control_methods``."""

from __future__ import annotations

from typing import cast

from minibroker.control.command_group import CommandGroup
from minibroker.partitions.producer_loss import Cause

__tracebackhide__ = True  # pytest shows the line of the test


class State(CommandGroup):
    """Operations on what the brokers know: producer state, logs, epochs, markers, brokers, groups.

    Each returns once it is done. Raises FaultError for arguments that make no sense, ApiError for what the cluster
    refuses.
    """

    _OTHER_NAMES = {"delete_topic": "the broker's own reset(topics=True)", "records": "the broker's own records"}

    def create_topic(self, topic: str, *, partitions: int = 1, replication_factor: int = -1) -> None:
        """Create a topic (-1: the broker's default number of replicas); returns once its leaders are known."""
        self._ask("state.create_topic", topic=topic, partitions=partitions, replication_factor=replication_factor)

    def lose_producer_state(self, topic: str, partition: int, *, producer_id: int | None = None) -> list[int]:
        """Make the leader forget one producer id, or all of them, as when its state was lost. Returns the forgotten
        ids."""
        return cast(
            "list[int]",
            self._ask("state.lose_producer_state", topic=topic, partition=partition, producer_id=producer_id),
        )

    def lose_producers(self, topic: str, partition: int, *, cause: Cause, offset: int | None = None) -> list[int]:
        """Make the leader lose producers by `cause`: expiration, retention, delete-records or lost-tail (from `offset`
        on). After the last three it has what a replica made by reassignment has: the producers of the records that are
        left, and a new leader epoch. Returns their ids."""
        return cast(
            "list[int]", self._ask("state.lose_producers", topic=topic, partition=partition, cause=cause, offset=offset)
        )

    def set_sequence(self, topic: str, partition: int, *, producer_id: int, last_sequence: int) -> None:
        """Set a producer's last sequence on the leader, such as one just before 2147483647, where it wraps."""
        self._ask(
            "state.set_sequence", topic=topic, partition=partition, producer_id=producer_id, last_sequence=last_sequence
        )

    def truncate_tail(self, topic: str, partition: int, *, offset: int) -> int:
        """Truncate the leader's log to `offset` and begin a new leader epoch there, as an unclean election would:
        acknowledged records are lost, followers truncate theirs and join the in-sync set again. Returns the new end."""
        return cast("int", self._ask("state.truncate_tail", topic=topic, partition=partition, offset=offset))

    def delete_records(self, topic: str, partition: int, *, offset: int = -1) -> int:
        """Move the log start up to `offset` (-1: the high watermark), as DeleteRecords does. Returns the new start."""
        return cast("int", self._ask("state.delete_records", topic=topic, partition=partition, offset=offset))

    def append_aborted(self, topic: str, partition: int, *, value: str = "aborted") -> int:
        """Append an aborted transaction of a new producer to a partition: one record and its marker, which has the next
        producer epoch with transaction.version 2. Returns the record's offset."""
        return cast("int", self._ask("state.append_aborted", topic=topic, partition=partition, value=value))

    def hang_transaction(
        self, topic: str, partition: int, *, transactional_id: str = "hanging", value: str = "hanging"
    ) -> int:
        """Leave a transaction open on a partition that its coordinator does not know of, as a batch does that arrives
        after its transaction's marker where partitions are not verified. Nothing ends it but an administrator's
        command. The id's own transaction must have ended; an unknown id gets a producer id first. Returns the record's
        offset."""
        return cast(
            "int",
            self._ask(
                "state.hang_transaction",
                topic=topic,
                partition=partition,
                transactional_id=transactional_id,
                value=value,
            ),
        )

    def fail_disk(self, *, topic: str | None = None, partition: int | None = None, broker: int | None = None) -> None:
        """Make the leader's log of one partition refuse every write (KAFKA_STORAGE_ERROR), or the whole disk of a
        broker fail every write with an I/O error, until `heal_disk`."""
        self._ask("state.fail_disk", topic=topic, partition=partition, broker=broker)

    def fill_disk(self, *, broker: int | None = None) -> None:
        """Make a broker's disk full: every write of every log and file there fails with ENOSPC until `heal_disk`. (A
        Kafka whose only log directory fails ends; here `kill_broker` does that.)"""
        self._ask("state.fill_disk", broker=broker)

    def heal_disk(self, *, topic: str | None = None, partition: int | None = None, broker: int | None = None) -> None:
        """Undo `fail_disk` or `fill_disk`."""
        self._ask("state.heal_disk", topic=topic, partition=partition, broker=broker)

    def expire_transactional_id(self, *, transactional_id: str) -> None:
        """Make the coordinator forget a transactional id, as after transactional.id.expiration.ms. Its transaction must
        have ended."""
        self._ask("state.expire_transactional_id", transactional_id=transactional_id)

    def set_producer_epoch(self, *, transactional_id: str, epoch: int) -> None:
        """Set the producer epoch of a transactional id, such as 32766, the last one a client can have. The next
        InitProducerId continues from there; a running producer is fenced. Its transaction must have ended. An unknown
        id gets a producer id first."""
        self._ask("state.set_producer_epoch", transactional_id=transactional_id, epoch=epoch)

    def hold_markers(self, *, transactional_id: str | None = None) -> None:
        """Hold the transaction markers of one transactional id, or of all: transactions stay in PrepareCommit or
        PrepareAbort."""
        self._ask("state.hold_markers", transactional_id=transactional_id)

    def release_markers(self, *, transactional_id: str | None = None) -> list[str]:
        """Send the held markers of one transactional id; without one send all and stop holding. Returns the
        transactional ids."""
        return cast("list[str]", self._ask("state.release_markers", transactional_id=transactional_id))

    def held_markers(self) -> list[str]:
        """Transactional ids whose markers are held."""
        return cast("list[str]", self._ask("state.held_markers"))

    def stop_broker(self, *, broker: int | None = None) -> None:
        """Stop a broker as SIGTERM does: it shuts down cleanly."""
        self._ask("state.stop_broker", broker=broker)

    def kill_broker(self, *, broker: int | None = None, unnoticed: bool = False) -> None:
        """Kill a broker as SIGKILL does: nothing is flushed or closed. `unnoticed`: the controller learns of it only
        when the broker's session times out."""
        self._ask("state.kill_broker", broker=broker, unnoticed=unnoticed)

    def start_broker(self, *, broker: int | None = None) -> None:
        """Start a stopped or killed broker again, with the data on its disk."""
        self._ask("state.start_broker", broker=broker)

    def restart_broker(self, *, broker: int | None = None, clean: bool = True) -> None:
        """Stop a broker, or kill it without `clean`, and start it again at once with the data on its disk."""
        self._ask("state.restart_broker", broker=broker, clean=clean)

    def pause_broker(self, *, broker: int | None = None) -> None:
        """Pause a broker as SIGSTOP does: connections stay open and new ones are accepted, but no request is
        processed."""
        self._ask("state.pause_broker", broker=broker)

    def resume_broker(self, *, broker: int | None = None) -> None:
        """Resume a paused broker: requests received while paused are processed, in order."""
        self._ask("state.resume_broker", broker=broker)

    def rebalance_group(self, *, group: str) -> None:
        """Make the members of a group rebalance, as when a member joins: they learn of it with their next heartbeats.
        Offsets of the generation before are refused once the members have joined again; a KIP-848 group gets its next
        epoch, and takes offsets of an older one for partitions that have not moved since (KIP-1251)."""
        self._ask("state.rebalance_group", group=group)

    def remove_member(self, *, group: str, member: str | None = None) -> list[str]:
        """Remove members from a group, as when their sessions time out. Returns their ids. member: a pattern for member
        ids, client ids or group.instance.ids (``*`` and ``?``); optional where there is one member."""
        return cast("list[str]", self._ask("state.remove_member", group=group, member=member))

    def restore(self) -> None:
        """Undo lasting faults: a stopped controller, cut links, failing disks, paused and stopped brokers, held
        markers. Rules and the clock are left as they are."""
        self._ask("state.restore")

    def stop_controller(self) -> None:
        """Stop the active controller: there are no elections, and requests for the controller wait."""
        self._ask("state.stop_controller")

    def start_controller(self) -> None:
        """Start the next active controller, which reads the metadata journal."""
        self._ask("state.start_controller")

    def cut_link(self, *, one: int, other: int) -> None:
        """Drop every message between two brokers, or a broker and the controller (-1), without an error."""
        self._ask("state.cut_link", one=one, other=other)

    def mend_link(self, *, one: int, other: int) -> None:
        """Undo `cut_link`; held messages are delivered if their sender still waits."""
        self._ask("state.mend_link", one=one, other=other)

    def move_leader(self, topic: str, partition: int, *, to: int) -> None:
        """Make broker `to` the leader of a partition."""
        self._ask("state.move_leader", topic=topic, partition=partition, to=to)

    def move_coordinator(self, *, to: int, transactional_id: str | None = None, group: str | None = None) -> None:
        """Make broker `to` the coordinator of a transactional id or a group."""
        self._ask("state.move_coordinator", to=to, transactional_id=transactional_id, group=group)
