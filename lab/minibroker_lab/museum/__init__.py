"""The museum: bugs of real clients, each shown on the version that had it."""
