"""The data pipeline: sources for segment files and topics, an exactly-once sink, and the audit, here or on Spark."""
