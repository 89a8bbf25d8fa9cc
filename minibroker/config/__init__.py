"""The registry of settings: keys, types, parsing."""
