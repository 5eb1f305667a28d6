"""The algorithms of a contraction, and the kernels of those that need several."""
