"""What a kernel uses, read off its lowered TIR: registers, traffic, operations."""
