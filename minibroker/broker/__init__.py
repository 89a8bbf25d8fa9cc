"""One broker: what it leads and follows, its upkeep and its sessions."""
