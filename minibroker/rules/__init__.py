"""The exactly-once rules, over plain rows: what audit, judge, simulation and check call."""
