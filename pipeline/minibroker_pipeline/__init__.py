"""The data pipeline: sources for segment files and topics, an exactly-once sink, and the audit, in the process or on Spark."""
