"""Templates that read each input once, shared by pooling, element-wise functions and row reductions."""
