"""Tests ask for promises, not for parts: where one uses a private attribute of another object, a row says why.

What a test takes from the inside breaks with each redesign, for nothing. It asks by a request, a command, a metric, a
file, a constructor argument or a fault instead.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from packages import ROOT

MOST = 100
_FOREIGN = "of a library or of the tests' own tools, which are no part of the product"
_PLANTED = "planted defects say which part they replace"
_CHOSEN = "a seed decides when this happens, and the test needs it now"
_NOWHERE = "what it leaves behind, which nothing shows"
_NO_PLACE = "a decision with many cases, whose only other way in is slow or leads through a process"

ALLOWED: dict[str, tuple[int, str]] = {
    "clients/test_faults.py": (2, _FOREIGN),
    "conftest.py": (4, _FOREIGN),
    "lab/conformance/test_schedule.py": (1, _FOREIGN),
    "support/lockstep_and_search/lockstep.py": (1, _FOREIGN),
    "support/recordings/write_healthy.py": (5, _FOREIGN),
    "support/recordings/write_readers.py": (2, _FOREIGN),
    "test_conftest.py": (2, _FOREIGN),
    "test_docs.py": (2, _FOREIGN),
    "test_mutants.py": (1, _FOREIGN),
    "lab/demo/test_command.py": (1, _PLANTED),
    "lab/simulation/test_simulation.py": (1, _PLANTED),
    "minibroker/handlers/test_made_up_api.py": (4, "an API that does not exist is put into the table for one test"),
    "pipeline/test_sink_keeper.py": (2, _PLANTED),
    "support/applications/sink_job.py": (4, _PLANTED),
    "support/damage_and_defects/ignored_setting.py": (7, _PLANTED),
    "lab/simulation/test_evidence.py": (5, _CHOSEN),
    "minibroker/broker/test_replica_fetcher.py": (4, _CHOSEN),
    "minibroker/cluster/test_common_ground.py": (4, _CHOSEN),
    "minibroker/server/test_file_descriptors.py": (1, _CHOSEN),
    "minibroker/server/test_listeners.py": (2, _CHOSEN),
    "minibroker/cluster/test_replication.py": (1, _NOWHERE),
    "minibroker/control/test_live_state.py": (3, _NOWHERE),
    "minibroker/coordinators/groups/test_histories.py": (1, _NOWHERE),
    "minibroker/coordinators/test_patterns.py": (4, _NOWHERE),
    "minibroker/handlers/test_several_brokers.py": (1, _NOWHERE),
    "minibroker/kernel/test_computing.py": (1, _NOWHERE),
    "minibroker/proxy/test_faults.py": (1, _NOWHERE),
    "minibroker/proxy/test_flow.py": (2, _NOWHERE),
    "minibroker/proxy/test_proxy_dispatcher.py": (1, _NOWHERE),
    "minibroker/proxy/test_through_a_proxy.py": (6, _NOWHERE),
    "minibroker/server/test_connection.py": (2, _NOWHERE),
    "minibroker/server/test_connection_steps.py": (1, _NOWHERE),
    "minibroker/trace/test_trace_file.py": (2, _NOWHERE),
    "minibroker/testing/test_embedded.py": (2, "the process id of a broker in a child process"),
    "pipeline/test_frames.py": (1, _NO_PLACE),
    "storage/test_disk.py": (3, _NOWHERE),
    "lab/museum/test_museum.py": (1, _NO_PLACE),
    "minibroker/client/test_topics.py": (2, "a client that has forgotten what it knew of the cluster"),
    "minibroker/cluster/test_failed_journal.py": (1, _NO_PLACE),
    "minibroker/cluster/test_socket_network.py": (3, "a stranger stands where a node listens"),
    "minibroker/control/test_api.py": (2, "commands as they are named over HTTP, which Python spells as methods"),
    "minibroker/control/test_command.py": (1, _NO_PLACE),
    "minibroker/coordinators/groups/test_consumer_groups.py": (1, _NO_PLACE),
    "minibroker/faults/test_between_brokers.py": (1, "two tables must have the same APIs"),
    "minibroker/handlers/test_configs.py": (1, _NO_PLACE),
    "minibroker/requests/test_chain.py": (1, "no link means no call in between"),
    "minibroker/seeds/test_out_of_order.py": (1, "a code that today only the log gives"),
    "minibroker/server/test_options.py": (3, _NO_PLACE),
    "minibroker/server/test_watchdog.py": (1, _FOREIGN),
    "pipeline/test_sink.py": (1, "the client as the sink configures it"),
    "pipeline/test_spark.py": (1, "the client as the source configures it"),
    "pipeline/test_statistics.py": (1, _NO_PLACE),
    "pipeline/test_topic_source.py": (2, "a client that has forgotten what it knew of the cluster"),
    "protocol/records/test_checksum.py": (5, "two ways to one function, of which a machine uses one"),
    "protocol/records/test_compression.py": (1, "two ways to one function, of which a machine uses one"),
    "protocol/records/test_native.py": (1, "the compiled module itself, below what calls it"),
    "protocol/test_dsl.py": (1, _NO_PLACE),
}
"""By file: how often, and why."""

_ATTRIBUTE = re.compile(r"\._[a-z]\w*")
_IMPORT = re.compile(r"^from minibroker[\w.]* import (.*)$", re.MULTILINE)
_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def uses(text: str) -> int:
    """Private names of other objects and modules in a test: not those that it defines itself."""
    names = [
        found[0][1:]
        for found in _ATTRIBUTE.finditer(text)
        if not text.endswith(("self", "cls"), max(0, found.start() - 4), found.start())
    ]
    for imported in _IMPORT.findall(text):
        names += re.findall(r"\b_[a-z]\w*", imported)
    count = Counter(name for name in names if name not in _NAMED_TUPLES)
    return sum(count[name] for name in count if not _is_own(name, text))


def _is_own(name: str, text: str) -> bool:
    if f"def {name}(" in text or f"self.{name} = " in text or f"cls.{name} = " in text:
        return True
    return re.search(rf"\bself\.{name}: .*=|^ +{name}\b.*[:=]|^{name} =", text, re.MULTILINE) is not None


@pytest.mark.matrix
def test_every_use_of_a_private_attribute_has_a_reason() -> None:
    counted: dict[str, int] = {}
    root = ROOT / "tests"
    for path in root.rglob("*.py"):
        # Planted defects are texts that name the places where they act.
        if path.parent.name != "defects" and path.name != "test_private_attributes.py":
            counted[path.relative_to(root).as_posix()] = uses(path.read_text(encoding="utf-8"))
    more = {file: count for file, count in counted.items() if count > ALLOWED.get(file, (0, ""))[0]}
    assert more == {}, "ask for the promise, or give the reason here"
    assert [file for file in ALLOWED if not counted.get(file)] == []
    assert sum(count for count, reason in ALLOWED.values() if reason != _FOREIGN) <= MOST


def test_a_use_is_seen() -> None:
    assert uses("x._part\nself._own\nrow._replace(a=1)\n") == 1
    assert uses("from minibroker.a import b, _part\n") == 1
    assert uses("class A:\n    def _part(self): ...\n\nA()._part()\n") == 0
