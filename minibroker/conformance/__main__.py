"""`python -m minibroker.conformance`: the same as `minibroker conformance`."""

from minibroker.cli import program

if __name__ == "__main__":
    program("conformance")
