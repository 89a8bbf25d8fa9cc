"""`python -m minibroker.audit`, and what spark-submit is given."""

import sys

from minibroker.audit.command import main

sys.exit(main())
