"""Compiled models on this machine, over RPC or on a phone, and worker processes."""
