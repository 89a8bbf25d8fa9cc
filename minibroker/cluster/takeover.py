"""Import topics from data directories whose controller journal lacks them: a real Kafka's, or after the journal was
lost.

Partitions and topic ids come from their directories; configs, features, broker configs, the next producer id, ACLs and
SCRAM credentials from Kafka's metadata log, when it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minibroker.cluster.found_topics import bring_back, report_absent, take_over_topics
from minibroker.config.keys import BROKER_KEYS
from minibroker.config.settings import Settings
from minibroker.config.types import ConfigError
from minibroker.controller.journal import JOURNAL
from minibroker.controller.kraft import DIRECTORY as METADATA_DIRECTORY
from minibroker.controller.kraft import KraftMetadata, read_kraft_metadata
from minibroker.controller.state import ControllerState
from minibroker.kernel.logs import get_logger
from minibroker.security.acls import problem_of
from minibroker.security.credentials import MIN_SALT_BYTES
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_storage.directory import DataDirectory

log = get_logger(__name__)


def kafka_metadata(state: ControllerState, directories: Sequence[DataDirectory], *, new: bool) -> KraftMetadata | None:
    """What Kafka's metadata log has that is to be taken over: all for a new journal, else ACLs and SCRAM credentials
    that an earlier version left there. None without such a log. Changes nothing.

    Raises ApiError KAFKA_STORAGE_ERROR for a log that cannot be read, and where an authorizer is set and the ACLs of
    the directories cannot be known; StorageError.
    """
    if not new and state.security_taken_over:
        return None
    guarded = bool(state.settings.get_string("authorizer.class.name"))
    try:
        kraft = _newest(directories)
    except ApiError as error:
        if new or guarded:
            raise
        log.warning("%s", error)
        return None
    if guarded:
        problem = _without_acls(directories) if kraft is None and new else _wrong_acls(kraft)
        if problem is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"authorizer.class.name is set, but {problem}")
    return kraft


def take_over(
    state: ControllerState, directories: Sequence[DataDirectory], kraft: KraftMetadata | None, *, new: bool
) -> None:
    """Import everything that `directories` and Kafka's metadata hold.

    new: the journal is.

    Raises MalformedFile, StorageError.
    """
    if kraft is not None and new:
        _take_over_metadata(state, kraft)
    if kraft is not None:
        _take_over_security(state, kraft)
    bring_back(state, directories)
    take_over_topics(state, directories, kraft if new else None)
    report_absent(state, directories)


def _newest(directories: Iterable[DataDirectory]) -> KraftMetadata | None:
    """Of several brokers, one may have been down while the metadata changed."""
    metadata = []
    for directory in directories:
        try:
            metadata.append(read_kraft_metadata(directory.disk))
        except Malformed as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"Kafka's metadata log: {error}") from error
    return max((kraft for kraft in metadata if kraft is not None), key=lambda kraft: kraft.end_offset, default=None)


def _without_acls(directories: Iterable[DataDirectory]) -> str | None:
    """Why the ACLs of directories without any metadata are unknown; None where nothing is to be protected yet."""
    if not any(directory.partitions() for directory in directories):
        return None
    return (
        f"the ACLs of the data directory cannot be known: it has partitions, and neither {METADATA_DIRECTORY} nor "
        f"{JOURNAL}. Start it once without an authorizer to take it over without ACLs"
    )


def _wrong_acls(kraft: KraftMetadata | None) -> str | None:
    if kraft is None:
        return None
    if kraft.damaged is not None:
        return f"Kafka's ACLs cannot be taken over: {kraft.damaged}"
    for entry in kraft.acls.values():
        problem = problem_of(entry)
        if problem is not None:
            return f"an ACL of Kafka cannot be taken over: {problem}: {entry}"
    return None


def _take_over_metadata(state: ControllerState, kraft: KraftMetadata) -> None:
    state.skip_producer_ids(kraft.next_producer_id)
    for node, configs in kraft.broker_configs.items():
        broker_configs = _known_broker_configs(node, configs)
        if broker_configs:
            state.set_broker_configs(node, broker_configs)
    for (kind, name), configs in kraft.resource_configs.items():
        if configs:
            state.set_resource_configs(kind, name, configs)


def _take_over_security(state: ControllerState, kraft: KraftMetadata) -> None:
    """ACLs and SCRAM credentials, and a line that counts what has no place here."""
    acls = [entry for entry in kraft.acls.values() if problem_of(entry) is None]
    users = kraft.scram_credentials.values()
    credentials = [held for held in users if len(held.salt) >= MIN_SALT_BYTES]
    state.take_over_security(acls, credentials)
    if acls or credentials:
        log.info("taking over %d ACL(s) and %d SCRAM credential(s) of Kafka", len(acls), len(credentials))
    left_out = {
        "ACL(s) that this version does not know": len(kraft.acls) - len(acls),
        f"SCRAM credential(s) with a salt below {MIN_SALT_BYTES} bytes": len(kraft.scram_credentials)
        - len(credentials),
        "client quota(s)": sum(map(len, kraft.quotas.values())),
        "delegation token(s)": len(kraft.delegation_tokens),
    }
    counts = ", ".join(f"{count} {what}" for what, count in left_out.items() if count)
    if counts:
        log.warning("not taken over from Kafka's metadata, and without effect here: %s", counts)


def _known_broker_configs(node: str, configs: Mapping[str, str]) -> dict[str, str]:
    known = {}
    for name, value in configs.items():
        try:
            if name not in BROKER_KEYS:
                raise ConfigError(f"{name} is not a config of this broker")
            Settings().altered(cluster={name: value})
        except ConfigError as error:
            log.warning("the config %s of broker %r is not taken over: %s", name, node, error)
        else:
            known[name] = value
    return known
