"""Pages with a picture of a transition table, for docs/."""

from __future__ import annotations

from collections.abc import Iterable


def page(title: str, module: str, ways: Iterable[tuple[str, str, str]]) -> str:
    """A Markdown page with a Mermaid diagram.

    ways: (from, to, what brings it about or ""), ``[*]``: begin and end.
    """
    lines = [f"    {source} --> {to}{f': {cause}' if cause else ''}" for source, to, cause in ways]
    diagram = "\n".join(["stateDiagram-v2", *lines])
    path = module.replace(".", "/") + ".py"
    return (
        f"# {title}\n\nDrawn from the table in `{path}` (`python -m {module}`); a test compares the two.\n\n"
        f"```mermaid\n{diagram}\n```\n"
    )
