"""Devices, platforms and drivers that tests run on, real and made up."""
