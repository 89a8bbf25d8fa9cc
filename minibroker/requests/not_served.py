"""APIs of Kafka that this broker does not serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOT_SERVED: Final[Mapping[int, str]] = {
    34: "AlterReplicaLogDirs",
    38: "CreateDelegationToken",
    39: "RenewDelegationToken",
    40: "ExpireDelegationToken",
    41: "DescribeDelegationToken",
    49: "AlterClientQuotas",
    76: "ShareGroupHeartbeat",
    77: "ShareGroupDescribe",
    78: "ShareFetch",
    79: "ShareAcknowledge",
    80: "AddRaftVoter",
    81: "RemoveRaftVoter",
    83: "InitializeShareGroupState",
    84: "ReadShareGroupState",
    85: "WriteShareGroupState",
    86: "DeleteShareGroupState",
    87: "ReadShareGroupStateSummary",
    88: "StreamsGroupHeartbeat",
    89: "StreamsGroupDescribe",
    90: "DescribeShareGroupOffsets",
    91: "AlterShareGroupOffsets",
    92: "DeleteShareGroupOffsets",
    93: "StreamsGroupTopologyDescriptionUpdate",
    94: "UnregisterController",
}
"""What the ApiVersions of a Kafka 4.4.0 broker lists beside the rows of the table of handlers."""


def description(api_key: int) -> str:
    """An API that is not served, as a log line names it, and why that is so."""
    name = NOT_SERVED.get(api_key)
    if name is None:
        return f"API key {api_key} is not served"
    why = ": this broker has no share groups" if "Share" in name else ""
    return f"{name} (API key {api_key}) is not served{why}"
