"""Measurements made by hand, for tests that need no device."""
