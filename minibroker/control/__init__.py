"""One list of commands on a running cluster, for Python, HTTP and the command line."""

TOKEN_VARIABLE = "MINIBROKER_CONTROL_TOKEN"
"""Names the token where no file does."""
