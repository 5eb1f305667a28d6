"""The parts of the public functions: devices, options, search, checks, models that run."""
