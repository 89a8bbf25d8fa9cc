"""Writes the data directories of a cluster of two Apache Kafka brokers, the first with two log directories:

    python tests/support write_two_brokers tests/golden/kafka-4.4.0/two-brokers.tar.xz

It has ACLs, SCRAM credentials and quotas, some of them removed again, before and after the newest metadata snapshot.
Needs Maven and confluent-kafka; nobody runs it in tests. Every file is kept but the lock and the metadata log's
indexes.
"""

from __future__ import annotations

import sys
import tarfile
import time
from hashlib import pbkdf2_hmac
from pathlib import Path

import confluent_kafka
from free_ports import free_ports
from real_kafka import RealKafka
from write_healthy import Wire, wait
from write_releases import packed

from minibroker.security.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from minibroker_protocol import messages as m

SETTINGS = """
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
offsets.topic.segment.bytes=1048576
transaction.state.log.segment.bytes=1048576
log.index.size.max.bytes=4096
metadata.log.segment.bytes=8388608
metadata.max.idle.interval.ms=0
metadata.log.max.record.bytes.between.snapshots=3000
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
TOPICS = {"open": [[1]], "secret": [[1]], "placed": [[1], [1], [1], [1], [2]], "copied": [[2, 1], [1, 2]]}
"""Replicas of each partition; the first of them leads."""
SHA_256, SHA_512 = 1, 2
HASHES = {SHA_256: "sha256", SHA_512: "sha512"}


def acl(
    principal: str,
    operation: AclOperation,
    topic: str,
    permission: AclPermissionType = AclPermissionType.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> m.CreateAclsRequest.AclCreation:
    return m.CreateAclsRequest.AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        resource_pattern_type=pattern,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=permission,
    )


def add_acls(wire: Wire, *entries: m.CreateAclsRequest.AclCreation) -> None:
    answer = wire.call(m.CreateAclsRequest(creations=list(entries)), 3)
    assert not any(result.error_code for result in answer.results), answer


def remove_acls(wire: Wire, principal: str) -> None:
    chosen = m.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=principal,
        host_filter=None,
        operation=AclOperation.ANY,
        permission_type=AclPermissionType.ANY,
    )
    answer = wire.call(m.DeleteAclsRequest(filters=[chosen]), 3)
    assert [len(result.matching_acls) for result in answer.filter_results] == [1], answer


def set_password(wire: Wire, user: str, password: str, mechanism: int = SHA_256) -> None:
    salt = b"short" if user == "erin" else f"the salt of {user}".encode()
    salted = pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, 4096)
    upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=4096, salt=salt, salted_password=salted
    )
    _alter_user(wire, m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))


def remove_password(wire: Wire, user: str, mechanism: int = SHA_256) -> None:
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=mechanism)
    _alter_user(wire, m.AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))


def _alter_user(wire: Wire, request: m.AlterUserScramCredentialsRequest) -> None:
    answer = wire.call(request, 0)
    assert [result.error_code for result in answer.results] == [0], answer


def set_quota(wire: Wire, user: str, key: str, value: float | None) -> None:
    kind = m.AlterClientQuotasRequest
    entry = kind.EntryData(
        entity=[kind.EntityData(entity_type="user", entity_name=user)],
        ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None)],
    )
    answer = wire.call(kind(entries=[entry], validate_only=False), 1)
    assert [result.error_code for result in answer.entries] == [0], answer


def create_topics(wire: Wire) -> None:
    kind = m.CreateTopicsRequest

    def topic(name: str, replicas: list[list[int]]) -> m.CreateTopicsRequest.CreatableTopic:
        assignments = [
            kind.CreatableReplicaAssignment(partition_index=index, broker_ids=nodes)
            for index, nodes in enumerate(replicas)
        ]
        return kind.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)

    answer = wire.call(kind(topics=[topic(*item) for item in TOPICS.items()], timeout_ms=30_000), 7)
    assert not any(made.error_code for made in answer.topics), answer
    time.sleep(2)


def write_records(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(10):
        for topic, replicas in TOPICS.items():
            for index in range(len(replicas)):
                producer.produce(topic, f"{index} {number}", partition=index)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("open", 0, 4)], asynchronous=False)
    consumer.close()


def snapshots(metadata: Path) -> list[str]:
    return sorted(path.name for path in metadata.glob("*.checkpoint") if int(path.name[:20]) > 0)


def story(first: RealKafka) -> None:
    wire = Wire(first.bootstrap)
    create_topics(wire)
    write_records(first.bootstrap)
    metadata = Path(f"{first.directory}/data-a/__cluster_metadata-0")
    add_acls(
        wire,
        acl("User:alice", AclOperation.ALL, "*"),
        acl("User:bob", AclOperation.READ, "pre", pattern=PatternType.PREFIXED),
        acl("User:carol", AclOperation.READ, "open"),
        acl("User:dave", AclOperation.READ, "open"),
    )
    remove_acls(wire, "User:carol")
    set_password(wire, "alice", "old")
    set_password(wire, "alice", "alice-secret", SHA_512)
    set_password(wire, "bob", "bob-secret")
    set_password(wire, "carol", "carol-secret")
    set_password(wire, "dave", "dave-secret")
    set_password(wire, "erin", "erin-secret")
    remove_password(wire, "carol")
    set_quota(wire, "alice", "producer_byte_rate", 1e6)
    set_quota(wire, "bob", "producer_byte_rate", 1e6)
    set_quota(wire, "bob", "consumer_byte_rate", 1e6)
    before = snapshots(metadata)
    for number in range(60):  # until a snapshot has all of that
        if snapshots(metadata) != before:
            break
        add_acls(wire, *(acl(f"User:reader-{number}", AclOperation.READ, f"topic-{i}") for i in range(2)))
        time.sleep(0.5)
    wait(lambda: snapshots(metadata) != before, "no snapshot was written")
    time.sleep(1)
    add_acls(wire, acl("User:alice", AclOperation.WRITE, "secret", AclPermissionType.DENY))
    remove_acls(wire, "User:dave")
    set_password(wire, "alice", "alice-new")
    remove_password(wire, "dave")
    set_quota(wire, "bob", "consumer_byte_rate", None)


def main() -> None:
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    first = RealKafka(f"{SETTINGS}log.dirs={{data}}-a,{{data}}-b\n")
    (port,) = free_ports(1)
    second = RealKafka(
        SETTINGS
        + "process.roles=broker\nnode.id=2\nlog.dirs={data}\n"
        + f"controller.quorum.voters=1@127.0.0.1:{first.controller_port}\n"
        + f"listeners=PLAINTEXT://127.0.0.1:{port}\n",
        port,
    )
    try:
        for kafka in (first, second):
            kafka.start()
            kafka.wait()
        time.sleep(3)
        story(first)
        second.stop()
        first.stop()
        for folder in (f"{first.directory}/data-a", f"{second.directory}/data"):
            for path in Path(folder, "__cluster_metadata-0").glob("*index"):
                path.unlink()  # 10 MB of zeros each
        with tarfile.open(target, "w:xz") as archive:
            packed(archive, "1a", Path(f"{first.directory}/data-a"))
            packed(archive, "1b", Path(f"{first.directory}/data-b"))
            packed(archive, "2", second.directory / "data")
        print(target.stat().st_size)
    except Exception:
        for kafka in (first, second):
            print((kafka.directory / "broker.log").read_text(errors="replace")[-2000:])
        raise
    finally:
        first.close()
        second.close()


if __name__ == "__main__":
    main()
