"""Models that run: here, over RPC, on a phone; and worker processes."""
