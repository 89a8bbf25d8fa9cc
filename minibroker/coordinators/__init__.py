"""Pure state machines: a coordinator method maps (state, request, now) to an Outcome; only `replay` writes state."""
