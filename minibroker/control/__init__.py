"""One list of commands on a running cluster, for Python, HTTP and the command line."""
