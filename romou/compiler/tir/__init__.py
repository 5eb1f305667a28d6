"""What TIR functions are marked with and made of: calls, primitives such as setImage, slices of buffers."""
