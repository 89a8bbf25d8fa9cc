"""Which defects there are, and the drawing of some of them from a seed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import parso
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

from .recording import ROOT

# The core: what promises something about exactly-once. Commands, demo and pages are left out.
CORE = (
    "protocol/minibroker_protocol", "storage/minibroker_storage", "minibroker/coordinators",
    "minibroker/coordinator_runtime", "minibroker/partitions", "minibroker/broker", "minibroker/requests",
    "minibroker/handlers", "minibroker/server", "minibroker/security", "minibroker/rules",
)  # fmt: skip


class DeleteStatement(Operator):
    """Deletes a call or an assignment."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and _deletable(node.children[0]):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first = node.get_first_leaf()
        return parso.python.tree.Name("pass\n", node.start_pos, prefix=first.prefix)

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return ()


def _deletable(statement: Any) -> bool:
    if statement.type == "expr_stmt":
        # A local name that is never bound is a NameError in any test, a field without its type a class without it.
        if statement.children[1].type == "annassign":
            return False
        return "." in statement.children[0].get_code() or statement.children[1].get_code().strip() not in ("=", ":")
    return statement.type in ("atom_expr", "await_expr") and "(" in statement.get_code()


# Kind of defect: its operators. A kind is drawn first, so that numbers, which are many, do not crowd out others.
KINDS = {
    "statement": ["delete"],
    "condition": [
        *(f"ReplaceComparisonOperator_{pair}" for pair in (
            "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
            "Is_IsNot", "IsNot_Is",
        )), "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot", "ReplaceUnaryOperator_Delete_Not",
    ],
    "number": ["NumberReplacer"],
    "arithmetic": [
        f"ReplaceBinaryOperator_{pair}" for pair in (
            "Add_Sub", "Sub_Add", "Mul_Add", "FloorDiv_Mul", "Mod_Mul", "BitAnd_BitOr",
            "LShift_RShift", "RShift_LShift",
        )
    ],
    "constant": ["ReplaceTrueWithFalse", "ReplaceFalseWithTrue"],
    "loop": ["ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"],
    "exception": ["ExceptionReplacer"],
}  # fmt: skip
WEIGHTS = {"statement": 4, "condition": 4, "number": 1, "arithmetic": 1, "constant": 1, "loop": 1, "exception": 1}


@dataclass(slots=True)
class Mutant:
    path: str
    operator: str
    occurrence: int
    line: int
    kind: str
    before: str = ""
    after: str = ""
    seen: str = ""  # the test that saw it, "timeout" or ""
    tests: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays when the lines around it change."""
        return self.path, self.before, self.after

    @property
    def place(self) -> tuple[str, str, int, int]:
        """What tells it from every other defect of the same tree."""
        return self.path, self.operator, self.occurrence, self.line

    @property
    def folder(self) -> str:
        return next(folder for folder in CORE if self.path.startswith(folder)).split("/")[-1]


def drawn(seed: int, count: int, only: str = "") -> list[Mutant]:
    """`count` defects, the same for the same seed and tree."""
    by_kind = defaultdict(list)
    for folder in CORE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = str(path.relative_to(ROOT))
            if only in relative:
                for mutant in candidates(relative, path.read_text()):
                    by_kind[mutant.kind].append(mutant)
    chance = random.Random(seed)
    mutants: list[Mutant] = []
    while len(mutants) < count and any(by_kind.values()):
        kinds = [kind for kind in KINDS if by_kind[kind]]
        kind = chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        mutant = by_kind[kind].pop(chance.randrange(len(by_kind[kind])))
        if changed(mutant):
            mutants.append(mutant)
    return mutants


def candidates(path: str, source: str) -> Iterator[Mutant]:
    nodes = list(_nodes(parso.parse(source)))
    lines = source.splitlines()
    for kind, names in KINDS.items():
        for name in names:
            operator, occurrence = _operator(name), 0
            for node in nodes:
                for start, _ in operator.mutation_positions(node):
                    if _worth_it(node, lines[start[0] - 1]):
                        yield Mutant(path, name, occurrence, start[0], kind)
                    occurrence += 1


@cache
def _operator(name: str) -> Any:
    return DeleteStatement() if name == "delete" else get_operator(f"core/{name}")()


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _worth_it(node: Any, line: str) -> bool:
    """No annotation, log line, assertion, type check or abstract body: none of these changes what a user sees.

    The texts of errors are not changed either: a test of each word would only repeat it.
    """
    if any(word in line for word in ("log.debug(", "log.info(", "log.warning(", "log.error(", "log.exception(")):
        return False
    if node.type == "assert_stmt" or any(
        word in line for word in ("TYPE_CHECKING", "__slots__", "NotImplementedError", "slots=True")
    ):
        return False
    child, parent = node, node.parent
    if node.type == "name" and parent.type == "trailer":
        return False  # the end of a dotted name, of which only that end would change
    if parent.type == "argument" and parent.children[0].get_code().strip() == "strict":
        return False  # of zip: an assertion
    if node.type == "operator" and node.value == "*" and parent.type not in ("term", "expr_stmt"):
        return False  # of a signature or a call
    while parent is not None:
        if parent.type in ("annassign", "tfpdef", "decorator", "import_from", "raise_stmt", "assert_stmt"):
            return False
        if (
            parent.type in ("param", "funcdef")
            and child.type not in ("suite", "parameters")
            and (parent.type == "funcdef" or child is not parent.children[-1])
        ):
            return False
        child, parent = parent, parent.parent
    return True


def changed(mutant: Mutant) -> str:
    """The file with the defect; "" when there is none. Sets what the line said and says."""
    source = (ROOT / mutant.path).read_text()
    try:
        after = MutationVisitor.mutate_code(source, _operator(mutant.operator), mutant.occurrence)
    except AttributeError:  # ExceptionReplacer has no answer to a dotted name in a tuple
        return ""
    try:
        compile(after or "", mutant.path, "exec")
    except SyntaxError:
        return ""
    if not after:
        return ""
    for old, new in zip(source.splitlines(), after.splitlines(), strict=False):
        if old != new:
            mutant.before, mutant.after = old.strip(), new.strip()
            break
    return str(after)


def found_again(mutant: Mutant) -> Mutant | None:
    """The same defect in today's tree, in which the lines may have moved; None when its line is gone."""
    if not (ROOT / mutant.path).exists():
        return None
    places = [
        candidate
        for candidate in candidates(mutant.path, (ROOT / mutant.path).read_text())
        if candidate.operator == mutant.operator
    ]
    for candidate in sorted(places, key=lambda candidate: abs(candidate.line - mutant.line)):
        if changed(candidate) and (candidate.before, candidate.after) == (mutant.before, mutant.after):
            return replace(mutant, occurrence=candidate.occurrence, line=candidate.line)
    return None
