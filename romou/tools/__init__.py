"""What shows and compares: reports, regression baselines, kernels taken apart."""
