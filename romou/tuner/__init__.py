"""From a task to its fastest config: analysis, pruning, search, measurement, records."""
