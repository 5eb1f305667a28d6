"""The algorithms of a contraction, with the kernels before and after its sum."""
