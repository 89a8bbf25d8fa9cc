"""`--metrics`: Kafka's metrics, under Kafka's names."""
