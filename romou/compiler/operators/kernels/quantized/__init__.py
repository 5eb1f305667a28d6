"""Products with quantized weights: the tiles of a config, and its kernel."""
