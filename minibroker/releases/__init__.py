"""What each release of Kafka serves and does, and the semantics presets."""
