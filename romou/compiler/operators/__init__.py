"""Operators and their kernels: operator families, and the shared code of contractions and of streaming families."""
