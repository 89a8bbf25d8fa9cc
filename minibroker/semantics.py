"""The named behaviours in which the `kafka` and `kip` semantics differ, and nothing else."""
