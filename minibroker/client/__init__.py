"""Asking any cluster: connections, login, and what is asked."""
