"""README's two set-up commands: CI runs those for Unix; here both forms are held to the same shape."""

from __future__ import annotations

import re

from readme import setup_commands


def test_two_commands_do_all_the_setup() -> None:
    demo, tests = setup_commands()
    assert demo == "python3 -m venv .venv && .venv/bin/pip install '.[demo]' && .venv/bin/minibroker demo"
    assert re.fullmatch(
        r"python3 -m venv \.venv && \.venv/bin/pip install (-e )?'\.\[test\]' && \.venv/bin/python -m pytest", tests
    )


def test_the_windows_form_does_the_same() -> None:
    as_windows = [
        line.replace("python3 -m venv", "py -m venv").replace("'", '"').replace(".venv/bin/", ".venv\\Scripts\\")
        for line in setup_commands("unix")
    ]
    assert setup_commands("windows") == as_windows
