"""The command `minibroker transactions` for the transactions of any broker (Kafka's TransactionsCommand).

Exit status: 0, 1 when the broker refuses or cannot be reached, 2 for arguments that make no sense.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from minibroker.client.commit import COMPLETE_COMMIT, Pending, commit, open_records, pending
from minibroker.client.connection import BrokerFailed
from minibroker.client.hanging import HANGING_AFTER_MS, OpenTransaction, end, find_hanging, open_transaction
from minibroker.client.security import add_command_config, read_security
from minibroker.client.transactions import TransactionsClient
from minibroker.controller.journal import JOURNAL, next_producer_id
from minibroker.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from minibroker.kernel.arguments import duration
from minibroker.kernel.words import fail
from minibroker.output import printable, say, write_out
from minibroker_protocol.errors import ApiError, ErrorCode

_COMMAND = "minibroker transactions"

Row = Mapping[str, Any]


class Refused(Exception):
    """An operation that the command performs only with an explicit option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands, each with its own options."""
    # They may stand before the action, too: there with their defaults, which those after it must not overwrite.
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    for options in (parser, common):
        options.add_argument("--bootstrap", metavar="HOST:PORT", help="any broker")
        add_command_config(options)
        options.add_argument("--timeout", type=duration, metavar="S", help="seconds to wait for a response (30)")
        options.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
    parser.set_defaults(timeout=30.0)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", parents=[common], help="transactional ids of all coordinators")
    listing.add_argument("--state", action="append", default=[], metavar="STATE", help="only this state (repeatable)")
    listing.add_argument(
        "--producer-id", action="append", type=int, default=[], metavar="ID", help="only this id (repeatable)"
    )
    listing.add_argument(
        "--running-longer-than-ms", type=int, default=-1, metavar="MS", help="only transactions open for longer"
    )
    listing.add_argument("--pattern", metavar="REGEX", help="only ids that the pattern matches as a whole")
    describing = actions.add_parser("describe", parents=[common], help="state of a transactional id at its coordinator")
    describing.add_argument("transactional_id", metavar="ID", nargs="+")
    describing.add_argument(
        "--kip-360", action="store_true", help="ask with DescribeTransactionState (minibroker only)"
    )
    producers = actions.add_parser("producers", parents=[common], help="producers of a partition")
    producers.add_argument("--topic", required=True)
    producers.add_argument("--partition", type=int, required=True)
    abort = actions.add_parser("abort", parents=[common], help="end a transaction")
    abort.add_argument("--transactional-id", metavar="ID", help="abort by taking over this id, as a new producer would")
    abort.add_argument(
        "--discard-committed", action="store_true", help="also where the coordinator committed it: its records are lost"
    )
    commit = actions.add_parser(
        "commit",
        parents=[common],
        help="commit a transaction whose producer no longer runs (as FLIP-572 for Flink), or write the marker that is"
        " missing on a partition where its coordinator committed it",
    )
    commit.add_argument("transactional_id", metavar="ID", nargs="?")
    commit.add_argument("--producer-id", type=int, metavar="P", help="producer id")
    commit.add_argument("--epoch", type=int, metavar="E", help="producer epoch")
    commit.add_argument("--dry-run", action="store_true", help="only say what would become visible")
    for action in (abort, commit):
        action.add_argument("--topic")
        action.add_argument("--partition", type=int)
        action.add_argument("--start-offset", type=int, metavar="O", help="first offset of the hanging transaction")
    hanging = actions.add_parser(
        "find-hanging", parents=[common], help="open transactions that no coordinator will end"
    )
    hanging.add_argument("--topic")
    hanging.add_argument(
        "--older-than-ms",
        type=int,
        default=HANGING_AFTER_MS,
        metavar="MS",
        help="of a producer that no coordinator knows, only if its last record is this old (%(default)s)",
    )
    skipping = actions.add_parser(
        "skip-producer-ids",
        parents=[common],
        help="use up the producer ids of a data directory, before its partitions are moved to this broker",
    )
    skipping.add_argument("--data-dir", required=True, metavar="DIR", help="minibroker's directory")


def run(arguments: argparse.Namespace) -> int:
    """Send the requests and print the answers."""
    if arguments.bootstrap is None:
        return fail("the following arguments are required: --bootstrap (see --help)", EXIT_USAGE, _COMMAND)
    try:
        security = read_security(arguments.command_config)
        client = TransactionsClient(arguments.bootstrap, timeout=arguments.timeout, security=security)
    except (OSError, ValueError) as error:
        return fail(error, EXIT_USAGE, _COMMAND)
    with client:
        try:
            rows = _ACTIONS[arguments.action](client, arguments)
        except ValueError as error:
            return fail(error, EXIT_USAGE, _COMMAND)
        except (ApiError, BrokerFailed, Refused) as error:
            return fail(error, EXIT_FAILED, _COMMAND)
    _print(rows, as_json=arguments.json)
    if not rows and not arguments.json and arguments.action in _NOTHING:
        return fail(_NOTHING[arguments.action], EXIT_OK, _COMMAND)
    return EXIT_OK


def _list(client: TransactionsClient, arguments: argparse.Namespace) -> list[Row]:
    listings = client.list_transactions(
        states=arguments.state,
        producer_ids=arguments.producer_id,
        longer_than_ms=arguments.running_longer_than_ms,
        pattern=arguments.pattern,
    )
    return [
        {
            "transactional_id": listed.transactional_id,
            "coordinator": node_id,
            "producer_id": listed.producer_id,
            "state": listed.transaction_state,
        }
        for node_id, listed in listings
    ]


def _describe(client: TransactionsClient, arguments: argparse.Namespace) -> list[Row]:
    if arguments.kip_360:
        return [
            {
                "transactional_id": transactional_id,
                "error": ErrorCode(state.error).name,
                "producer_id": state.producer_id,
                "epoch": state.epoch,
                "state": state.state,
                "partitions": [f"{p.topic_name}-{i}" for p in state.partitions for i in p.partition_ids],
            }
            for transactional_id, state in client.describe_state(arguments.transactional_id).items()
        ]
    rows: list[Row] = []
    for transactional_id in arguments.transactional_id:
        node_id, described = client.describe(transactional_id)
        rows.append(
            {
                "transactional_id": transactional_id,
                "coordinator": node_id,
                "producer_id": described.producer_id,
                "producer_epoch": described.producer_epoch,
                "state": described.transaction_state,
                "timeout_ms": described.transaction_timeout_ms,
                "start_time_ms": described.transaction_start_time_ms,
                "partitions": [f"{t.topic}-{i}" for t in described.topics for i in t.partitions],
            }
        )
    return rows


def _producers(client: TransactionsClient, arguments: argparse.Namespace) -> list[Row]:
    return [
        {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "last_sequence": producer.last_sequence,
            "last_timestamp": producer.last_timestamp,
            "transaction_start_offset": producer.current_txn_start_offset,
        }
        for producer in client.producers(arguments.topic, arguments.partition)
    ]


def _abort(client: TransactionsClient, arguments: argparse.Namespace) -> list[Row]:
    place = (arguments.topic, arguments.partition, arguments.start_offset)
    if arguments.transactional_id is not None and place == (None, None, None):
        producer_id, epoch = client.fence(arguments.transactional_id)
        return [{"transactional_id": arguments.transactional_id, "producer_id": producer_id, "producer_epoch": epoch}]
    if arguments.transactional_id is not None or None in place:
        raise ValueError("abort takes either --transactional-id, or --topic, --partition and --start-offset")
    hanging = open_transaction(client, *place)
    if hanging.may_be_committed:
        _print_records(_records(client, hanging), arguments)
        if not arguments.discard_committed:
            verb = "committed" if "COMMIT" in hanging.outcome else "may have committed"
            raise Refused(
                f"the coordinator of {hanging.transactional_id} {verb} it: an abort discards these records for good; "
                "use transactions commit with the same options, or --discard-committed"
            )
    end(client, hanging, commit=False)
    return [_ended(hanging)]


def _records(client: TransactionsClient, hanging: OpenTransaction) -> list[Pending]:
    return open_records(client, hanging.topic, hanging.partition, hanging.producer.producer_id, hanging.start_offset)


def _print_records(pending_records: Sequence[Pending], arguments: argparse.Namespace) -> None:
    _print([{**p._asdict(), "group_offsets": [*p.group_offsets]} for p in pending_records], as_json=arguments.json)
    sys.stdout.flush()


def _ended(hanging: OpenTransaction) -> Row:
    return {
        "topic": hanging.topic,
        "partition": hanging.partition,
        "producer_id": hanging.producer.producer_id,
        "producer_epoch": hanging.producer.producer_epoch,
    }


def _commit(client: TransactionsClient, arguments: argparse.Namespace) -> list[Row]:
    identity = arguments.transactional_id, arguments.producer_id, arguments.epoch
    place = arguments.topic, arguments.partition, arguments.start_offset
    if None not in place and identity == (None, None, None):
        return _commit_here(client, arguments)
    if None in identity or place != (None, None, None):
        raise ValueError(
            "commit takes either ID, --producer-id and --epoch, or --topic, --partition and --start-offset"
        )
    state, partitions = pending(client, *identity)
    _print_records(partitions, arguments)
    if state == COMPLETE_COMMIT:
        fail(f"{arguments.transactional_id} is committed already: nothing was sent", EXIT_OK, _COMMAND)
    elif not arguments.dry_run:
        state = commit(client, *identity, state)
    return [
        {
            "transactional_id": arguments.transactional_id,
            "producer_id": arguments.producer_id,
            "producer_epoch": arguments.epoch,
            "records": sum(p.records for p in partitions),
            "state": state,
            "dry_run": arguments.dry_run,
        }
    ]


def _commit_here(client: TransactionsClient, arguments: argparse.Namespace) -> list[Row]:
    """The marker that the coordinator dropped, on one partition."""
    hanging = open_transaction(client, arguments.topic, arguments.partition, arguments.start_offset)
    if hanging.outcome != "COMMIT":
        owner = f"the coordinator of {hanging.transactional_id}" if hanging.transactional_id else "a coordinator"
        raise Refused(f"{owner} did not commit it, as far as is known (its decision: {hanging.outcome})")
    pending_records = _records(client, hanging)
    _print_records(pending_records, arguments)
    if not arguments.dry_run:
        end(client, hanging, commit=True)
    return [{**_ended(hanging), "records": sum(p.records for p in pending_records), "dry_run": arguments.dry_run}]


def _find_hanging(client: TransactionsClient, arguments: argparse.Namespace) -> list[Row]:
    now_ms = time.time_ns() // 1_000_000
    leaders = client.leaders(None if arguments.topic is None else [arguments.topic])
    led = [place for place, address in leaders.items() if address is not None]
    unled = [f"{topic}-{partition}" for (topic, partition), address in leaders.items() if address is None]
    if unled:
        fail(f"not asked, because they have no leader: {', '.join(unled)}", EXIT_OK, _COMMAND)
    suspects = find_hanging(client, led, older_than_ms=arguments.older_than_ms, now_ms=now_ms)
    return [
        {
            "topic": hanging.topic,
            "partition": hanging.partition,
            "producer_id": hanging.producer.producer_id,
            "producer_epoch": hanging.producer.producer_epoch,
            "start_offset": hanging.start_offset,
            "last_timestamp": hanging.producer.last_timestamp,
            "transactional_id": hanging.transactional_id,
            "state": hanging.state,
            "decision": hanging.outcome,
        }
        for hanging in suspects
    ]


def _skip_producer_ids(client: TransactionsClient, arguments: argparse.Namespace) -> list[Row]:
    path = os.path.join(arguments.data_dir, JOURNAL)
    try:
        with open(path, "rb") as file:
            following = next_producer_id(file.read())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    last = client.skip_producer_ids(following) if following else None
    return [{"data_dir": arguments.data_dir, "ids_below": following, "last_producer_id": last}]


_ACTIONS = {
    "list": _list,
    "describe": _describe,
    "producers": _producers,
    "abort": _abort,
    "commit": _commit,
    "find-hanging": _find_hanging,
    "skip-producer-ids": _skip_producer_ids,
}


_NOTHING = {"list": "no transactions", "producers": "no producers", "find-hanging": "no hanging transactions"}
"""What is said on stderr where a table would be empty."""


def _print(rows: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            write_out(json.dumps(row) + "\n")
        return
    if not rows:
        return
    table = [[name.upper().replace("_", "-") for name in rows[0]]]
    table += [[printable(",".join(v) if isinstance(v, list) else str(v)) for v in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
