"""Kernels for tests: single operators, what they use of a device, and ways to run them on a CPU."""
