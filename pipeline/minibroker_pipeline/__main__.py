"""`python -m minibroker_pipeline`, and what spark-submit is given."""

from minibroker.cli import program

if __name__ == "__main__":
    program("audit")
