"""The usage of a kernel, by formulas over knobs or from its lowered TIR: registers, traffic, operations."""
