"""The public kit for tests."""
