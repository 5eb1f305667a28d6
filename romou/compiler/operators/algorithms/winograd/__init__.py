"""Winograd's algorithm: convolutions and filter gradients with fewer multiplications, in three kernels."""
