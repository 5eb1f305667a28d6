"""The vocabulary of TIR functions: calls, primitives such as setImage, slices of buffers."""
