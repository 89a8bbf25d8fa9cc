"""What runs the pure machines, without knowing Kafka: clocks, timers, deferred results, executors, the wire."""
