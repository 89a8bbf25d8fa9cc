"""`python -m minibroker.conformance`: the same as `minibroker conformance`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
