"""TLS contexts, SASL exchanges and access control, without sockets."""
