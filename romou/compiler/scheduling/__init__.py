"""Tools of schedules: reading blocks, rewriting functions, scheduling loops, writing kernels out."""
