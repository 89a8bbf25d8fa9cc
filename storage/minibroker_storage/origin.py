"""The origin of a batch (client, leader, coordinator), which decides the checks that apply to it."""

from enum import Enum


class Origin(Enum):
    """Kafka's AppendOrigin, without the metadata log's RAFT_LEADER."""

    CLIENT = "client"
    """A Produce request: every check applies."""
    COORDINATOR = "coordinator"
    """Offset commits, transaction state and markers: epochs are checked, sequences and duplicates are not."""
    REPLICATION = "replication"
    """Followers, recovery and rebuilding: the leader's decision stands, violations are only worth a log line."""
