"""Kafka's wire protocol: bytes to messages and back. No I/O, no clock."""
