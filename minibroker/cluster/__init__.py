"""Brokers of one cluster in one process: metadata, partitions, controller and the wire between brokers."""
