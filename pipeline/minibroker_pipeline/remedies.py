"""Commands for an operator to resolve a finding, with the risk of each: rows of `catalogue.json`, filled in."""

from __future__ import annotations

import os
import re
import shlex
from typing import NamedTuple

from minibroker.rules.catalogue import NOTICE, RULES
from minibroker.rules.rows import Finding

BOOTSTRAP = "--bootstrap "
"""How the source of a running cluster begins: options, not a path."""
UNKNOWN_BROKER = "HOST:PORT"
_PLACE = re.compile(r"{(\w+)}")


class Remedy(NamedTuple):
    """A command as a shell takes it; words in capitals are for the operator to fill in."""

    command: str
    risk: str


def remedies_of(finding: Finding, source: str) -> list[Remedy]:
    """The remedies of the finding's rule, in the order to try them, without those that need a value that the finding
    lacks.

    source: a path, or `--bootstrap HOST:PORT` and the options that go with it.
    """
    if finding.severity == NOTICE and RULES[finding.rule].severity != NOTICE:
        return []  # lawful, or settled by opening the log
    options = source if source.startswith(BOOTSTRAP) else BOOTSTRAP + UNKNOWN_BROKER
    known = {
        "topic": shlex.quote(finding.log.topic),
        "partition": str(finding.log.partition),
        "transactional_id": shlex.quote(finding.transactional_id) if finding.transactional_id else "",
        "bootstrap": options,
        "server": f"--bootstrap-server {options.split()[1]}",
    }
    if finding.file and options != source and "://" not in source:
        known["file"] = shlex.quote(os.path.join(source, finding.file))
    if finding.first_offset >= 0:
        known["first_offset"] = str(finding.first_offset)
        known["count"] = str(finding.last_offset - finding.first_offset + 1)
    if finding.producer_id >= 0:
        known["producer_id"], known["producer_epoch"] = str(finding.producer_id), str(finding.producer_epoch)
    return [
        Remedy(_PLACE.sub(lambda place: known[place[1]], command), risk)
        for command, risk in RULES[finding.rule].remedies
        if all(known.get(name) for name in _PLACE.findall(command))
    ]
