"""Releases of Kafka: the APIs and behaviours of each, and the semantics presets."""
