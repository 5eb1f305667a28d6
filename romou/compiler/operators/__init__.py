"""Operators and their kernels: families (`families/`), what contractions share, what streaming families share, and TIR
that both are made of.
"""
