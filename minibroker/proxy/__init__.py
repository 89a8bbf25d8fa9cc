"""The chain of requests in front of an existing cluster: each request is passed on to one of its brokers."""
