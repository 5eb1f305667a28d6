"""Reports, regression baselines, and inspection of kernels."""
