"""Templates that read each input once: what pooling, element-wise functions and row reductions share."""
