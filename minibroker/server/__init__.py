"""The asyncio edge: listeners, connections, frames in and out."""
