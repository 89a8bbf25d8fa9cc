"""`--metrics`: what monitoring scrapes of a Kafka, under the names it has there."""
