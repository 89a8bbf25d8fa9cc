"""Kafka's on-disk partition log: segments, indexes, recovery and producer state, over a disk that is handed in."""
