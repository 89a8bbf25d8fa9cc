"""Tests ask for promises, not for parts: where one uses a private attribute of another object, or replaces a part of
the product, a row says why.

What a test takes from the inside breaks with each redesign, for nothing. It asks by a request, a command, a metric, a
file, a constructor argument, the clock or a fault instead. A patch of the system or of a library is no such use.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter

import pytest
from packages import ROOT

MOST = 91
_FOREIGN = "of a library or of the tests' own tools, which are no part of the product"
_PLANTED = "planted defects say which part they replace"
_CHOSEN = "a seed decides when this happens, and the test needs it now"
_NOWHERE = "what it leaves behind, which nothing shows"
_LIMIT = "a limit, or a time, that a test would have to reach"
_TWO_WAYS = "two ways to one answer, of which the size of the input or the machine chooses one"
_PROGRAM = "what a command starts: brokers, programs, a run of minutes"
_SEEN = "whether, or where, work is done that no answer shows"
_NO_PLACE = "a decision with many cases, whose only other way in is slow or leads through a process"

ALLOWED: dict[str, tuple[int, str]] = {
    "clients/test_faults.py": (2, _FOREIGN),
    "conftest.py": (4, _FOREIGN),
    "lab/conformance/test_schedule.py": (1, _FOREIGN),
    "support/lockstep_and_search/lockstep.py": (1, _FOREIGN),
    "support/recordings/write_healthy.py": (5, _FOREIGN),
    "support/recordings/write_readers.py": (2, _FOREIGN),
    "test_conftest.py": (2, _FOREIGN),
    "test_docs.py": (3, _FOREIGN),
    "test_mutants.py": (1, _FOREIGN),
    "lab/simulation/test_planted.py": (1, _PLANTED),
    "lab/simulation/test_simulation.py": (2, _PLANTED),
    "minibroker/handlers/test_made_up_api.py": (5, "an API that does not exist is put into the table for one test"),
    "lab/simulation/test_evidence.py": (4, _CHOSEN),
    "minibroker/cluster/test_replication.py": (2, _NOWHERE),
    "minibroker/coordinators/groups/test_histories.py": (1, _NOWHERE),
    "minibroker/handlers/test_several_brokers.py": (1, _NOWHERE),
    "minibroker/kernel/test_computing.py": (2, _NOWHERE),
    "minibroker/proxy/test_flow.py": (1, _NOWHERE),
    "minibroker/server/test_connection_steps.py": (1, _NOWHERE),
    "pipeline/test_frames.py": (1, _NO_PLACE),
    "storage/test_disk.py": (3, _NOWHERE),
    "minibroker/cluster/test_failed_journal.py": (3, _NO_PLACE),
    "minibroker/cluster/test_socket_network.py": (2, "a stranger stands where a node listens"),
    "minibroker/control/test_command.py": (1, _NO_PLACE),
    "minibroker/coordinators/groups/test_consumer_groups.py": (2, _NO_PLACE),
    "minibroker/faults/test_between_brokers.py": (1, "two tables must have the same APIs"),
    "minibroker/handlers/test_configs.py": (1, _NO_PLACE),
    "minibroker/requests/test_chain.py": (1, "no link means no call in between"),
    "minibroker/seeds/test_out_of_order.py": (1, "a code that today only the log gives"),
    "minibroker/server/test_options.py": (3, _NO_PLACE),
    "minibroker/server/test_watchdog.py": (1, _SEEN),
    "pipeline/test_sink.py": (2, "the client as the sink configures it"),
    "pipeline/test_spark.py": (1, "the client as the source configures it"),
    "pipeline/test_statistics.py": (1, _NO_PLACE),
    "protocol/records/test_native.py": (2, "the compiled module itself, below what calls it"),
    "lab/conformance/test_daily_use.py": (1, _LIMIT),
    "lab/conformance/test_order.py": (1, _PROGRAM),
    "lab/conformance/test_runner.py": (2, _LIMIT),
    "minibroker/broker/test_log_cleaner.py": (3, _CHOSEN),
    "minibroker/cluster/test_golden_two_brokers.py": (1, _CHOSEN),
    "minibroker/cluster/test_recovery_off_the_loop.py": (1, _SEEN),
    "minibroker/control/test_live_page.py": (3, _LIMIT),
    "minibroker/control/test_reading.py": (1, _LIMIT),
    "minibroker/coordinator_runtime/test_transaction_service.py": (3, _CHOSEN),
    "minibroker/coordinators/groups/test_expressions.py": (2, _TWO_WAYS),
    "minibroker/coordinators/groups/test_txn_offsets.py": (2, _SEEN),
    "minibroker/handlers/test_as_kafka.py": (1, _CHOSEN),
    "minibroker/handlers/test_holding_the_loop.py": (2, _CHOSEN),
    "minibroker/handlers/test_later.py": (1, _SEEN),
    "minibroker/handlers/test_long_lists.py": (1, _CHOSEN),
    "minibroker/kernel/test_garbage.py": (1, _LIMIT),
    "minibroker/requests/test_reasons.py": (1, _SEEN),
    "minibroker/server/test_attackers.py": (1, _LIMIT),
    "minibroker/server/test_security.py": (1, _CHOSEN),
    "minibroker/server/test_settings_of_serving.py": (1, _SEEN),
    "pipeline/test_command.py": (1, _PROGRAM),
    "pipeline/test_damage_table.py": (1, _TWO_WAYS),
    "pipeline/test_follow_checkpoint.py": (2, _CHOSEN),
    "pipeline/test_listing.py": (1, _SEEN),
    "pipeline/test_lockstep.py": (2, _TWO_WAYS),
    "pipeline/test_topic_sink.py": (3, _LIMIT),
    "protocol/records/test_runs.py": (3, _TWO_WAYS),
    "storage/test_recovery.py": (1, _SEEN),
    "support/in_memory/memory_cluster.py": (1, _CHOSEN),
}
"""By file: how often, and why."""

_PATCHES = {"setattr", "setitem", "delattr", "delitem"}
_ATTRIBUTE = re.compile(r"\._[a-z]\w*")
_IMPORT = re.compile(r"^from minibroker[\w.]* import (.*)$", re.MULTILINE)
_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def patches(text: str) -> int:
    """Calls that replace a part of the product: what is named by an import or a path of it, or by a local variable."""
    tree = ast.parse(text)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            imported[node.name] = "of the test itself"
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: node.module or "" for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
    return sum(_is_patch_of_the_product(node, imported) for node in ast.walk(tree))


def _is_patch_of_the_product(node: ast.AST, imported: dict[str, str]) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return False
    by_name = node.func.attr in _PATCHES and ast.unparse(node.func.value) not in imported
    if not by_name and ast.unparse(node.func) not in {"patch.object", "mock.patch.object", "patch.dict"}:
        return False
    target = ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else None
    if isinstance(target, str):
        names = target.split(".")[:-1]
        package = target
    else:
        names = [name for name in re.findall(r"\w+", ast.unparse(node.args[0])) if name != "type"]
        package = imported.get(names[0], "minibroker")
    # `server.command.os` is the module of the library, by whatever way it is named.
    return package.startswith("minibroker") and not (names and names[-1] in sys.stdlib_module_names)


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


def _uses_and_patches(text: str) -> int:
    return uses(text) + patches(text)


def _is_own(name: str, text: str) -> bool:
    if f"def {name}(" in text or f"self.{name} = " in text or f"cls.{name} = " in text:
        return True
    return re.search(rf"\bself\.{name}: .*=|^ +{name}\b.*[:=]|^{name} =", text, re.MULTILINE) is not None


@pytest.mark.matrix
def test_every_use_of_a_private_attribute_and_every_patch_has_a_reason() -> None:
    counted: dict[str, int] = {}
    root = ROOT / "tests"
    for path in root.rglob("*.py"):
        # Planted defects are texts that name the places where they act.
        if path.parent.name != "defects" and path.name != "test_private_attributes.py":
            counted[path.relative_to(root).as_posix()] = _uses_and_patches(path.read_text(encoding="utf-8"))
    more = {file: count for file, count in counted.items() if count > ALLOWED.get(file, (0, ""))[0]}
    assert more == {}, "ask for the promise, or give the reason here"
    assert [file for file in ALLOWED if not counted.get(file)] == []
    assert sum(count for count, reason in ALLOWED.values() if reason != _FOREIGN) <= MOST


def test_a_use_is_seen() -> None:
    assert uses("x._part\nself._own\nrow._replace(a=1)\n") == 1
    assert uses("from minibroker.a import b, _part\n") == 1
    assert uses("class A:\n    def _part(self): ...\n\nA()._part()\n") == 0


def test_a_patch_is_seen() -> None:
    imports = "import os\nfrom minibroker import a\nfrom pyspark import conf\n"
    assert patches(imports + "m.setattr(a, 'x', 1)\nm.setattr('minibroker.a.x', 1)\nm.setattr(part, 'x', 1)\n") == 3
    assert patches(imports + "with patch.object(a.B, 'x'): ...\nm.setattr(type(part), 'x', 1)\n") == 2
    assert patches(imports + "m.setattr(os, 'x', 1)\nm.setattr(a.os, 'x', 1)\nm.setattr(conf, 'x', 1)\n") == 0
    assert patches(imports + "m.setattr('minibroker.a.os.x', 1)\nm.setenv('A', 'b')\nsetattr(a, 'x', 1)\n") == 0
