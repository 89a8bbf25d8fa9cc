"""Rules on decoded requests that make a broker answer late, wrongly, twice or not at all."""

from minibroker.faults.actions import (
    Action,
    ApplyThenError,
    BlackHole,
    Close,
    Corrupt,
    Delay,
    Do,
    DropReply,
    Duplicate,
    Error,
    Hold,
    NoRecords,
    Reorder,
    Reset,
    Throttle,
    Truncate,
)
from minibroker.kernel.fault_error import FaultError

__all__ = [
    "Action",
    "ApplyThenError",
    "BlackHole",
    "Close",
    "Corrupt",
    "Delay",
    "Do",
    "DropReply",
    "Duplicate",
    "Error",
    "FaultError",
    "Hold",
    "NoRecords",
    "Reorder",
    "Reset",
    "Throttle",
    "Truncate",
]
