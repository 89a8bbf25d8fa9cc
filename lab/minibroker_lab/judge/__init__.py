"""Judging clients: a broker of their own, failures from a script, and a verdict whether exactly-once held."""
