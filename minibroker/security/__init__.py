"""Who may connect: TLS contexts and SASL exchanges, without a socket in sight."""
