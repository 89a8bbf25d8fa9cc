"""Exit statuses of commands."""

from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""Arguments or a configuration that make no sense, or an extra that is missing."""

# Exit codes of the commands that give a verdict.
EXIT_HELD: Final = EXIT_OK
EXIT_BROKEN: Final = EXIT_FAILED
EXIT_UNDECIDED: Final = EXIT_USAGE
EXIT_UNMET: Final = 4
"""It held, and something of what it is about was never tried."""
EXIT_SKIPPED: Final = 77
"""As for automake's tests."""

EXIT_UNEXPECTED: Final = 70
"""EX_SOFTWARE of sysexits.h: no command uses it for an answer."""
EXIT_SIGNALLED: Final = 128
"""With the number of the signal added."""
EXIT_INTERRUPTED: Final = EXIT_SIGNALLED + 2
EXIT_BROKEN_PIPE: Final = EXIT_SIGNALLED + 13
