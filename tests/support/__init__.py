"""Modules that several test folders use."""
