"""A client of any cluster: connections, login, requests."""
