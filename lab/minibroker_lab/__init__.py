"""The laboratory: what examines brokers and clients, and is no part of the broker."""
