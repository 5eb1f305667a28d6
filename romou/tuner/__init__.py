"""The tuner: finds the fastest config of a task by analysis, pruning, search, measurement and records."""
