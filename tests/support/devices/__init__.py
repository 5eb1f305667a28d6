"""Devices, platforms and drivers that tests run on, both real and synthetic."""
