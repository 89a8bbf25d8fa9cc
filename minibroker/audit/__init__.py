"""The exactly-once audit: rules over plain rows, readers that make the rows, a Spark pipeline for many."""
