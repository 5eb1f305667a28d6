"""Kernels taken apart for a person: source, lowered IR, passes, and what `romou.tuner.analysis` reads off them."""
