"""Scheduled kernels and the graph, compiled into one module."""
