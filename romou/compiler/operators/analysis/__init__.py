"""The usage of a kernel, from its lowered TIR: registers, traffic, operations."""
