"""Romou's version: stands in records, libraries and saved models."""

__version__ = "0.1.0"
