"""Romou's version, as in records, libraries and saved models."""

__version__ = "0.2.0"
