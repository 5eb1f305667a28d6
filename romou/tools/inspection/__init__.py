"""Kernels for a person to read: source, lowered IR, passes, and the counts of `romou.tuner.analysis`."""
