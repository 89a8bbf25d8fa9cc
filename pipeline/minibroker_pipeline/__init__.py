"""The data pipeline: sources for segment files and topics, and the audit, in the process or on Spark."""
