"""Kernels taken apart for a person: source, lowered IR, passes, and what `romou.analysis` reads off them."""
