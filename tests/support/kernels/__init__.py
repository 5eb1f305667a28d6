"""Kernels for tests: single operators, their use of a device, and ways to run them on a CPU."""
