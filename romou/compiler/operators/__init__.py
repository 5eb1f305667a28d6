"""Operators and their kernels: families, contractions and their algorithms, kernels written out, costs."""
