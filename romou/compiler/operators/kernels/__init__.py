"""Kernels that are not scheduled as contractions: written out as loops, or scheduled by the user."""
