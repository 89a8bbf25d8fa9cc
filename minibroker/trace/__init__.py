"""Every exchange of a broker with its clients, to look at, to keep and to send again."""
