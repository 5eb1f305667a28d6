"""Products with packed weights of few bits: tiles of a config, default configs, and the kernels."""
