"""One module per API family and one table that lists them all (`minibroker.handlers.table`)."""
