"""What can be read off a kernel without running it: counts and estimates from lowered TIR and from OpenCL text."""

from romou.analysis.counts import IntegerOperations, TextOperations, count_integer_operations, count_text_operations

__all__ = ["IntegerOperations", "TextOperations", "count_integer_operations", "count_text_operations"]
