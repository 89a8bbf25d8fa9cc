"""The chain of requests in front of somebody else's cluster: each request goes on to a broker of it."""
