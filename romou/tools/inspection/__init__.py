"""Kernels for a person to read: source, lowered IR, passes, and the counts of `romou.compiler.operators.analysis`."""
