"""Runs outcomes: deferred results, coroutines without an event loop, clocks, timers and executors."""
