"""A suite of wire-level scenarios, recorded from Apache Kafka, that runs against any broker speaking its protocol."""
