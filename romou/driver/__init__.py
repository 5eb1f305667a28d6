"""The parts of the public functions: options, the device, search, choice of kernels, checks, sizes, phones."""
