"""Attention as one kernel: its recognition, its template and the loops of the kernel."""
