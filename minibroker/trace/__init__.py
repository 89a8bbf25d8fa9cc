"""Exchanges of a broker with its clients: shown, saved and replayed."""
