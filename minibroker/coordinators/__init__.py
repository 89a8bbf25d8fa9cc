"""Pure state machines: a method maps (state, request, now) to a CoordinatorResult; only `replay` writes state."""
