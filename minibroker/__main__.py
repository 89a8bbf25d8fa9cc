"""`python -m minibroker`."""

from minibroker.cli import program

if __name__ == "__main__":
    program()
