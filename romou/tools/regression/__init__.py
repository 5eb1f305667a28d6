"""Regression tests of kernels: a model's operators, their times and measures, stored in a file and compared."""

from romou.tools.regression.bench_data import Bench, OperatorBench, load_module
from romou.tools.regression.comparison import Comparison, Row, compare_benches, compare_recorded, parse_threshold
from romou.tools.regression.operators import JUDGED, operators_of
from romou.tools.regression.timing import time_in_turns, with_times

__all__ = [
    "JUDGED",
    "Bench",
    "Comparison",
    "OperatorBench",
    "Row",
    "compare_benches",
    "compare_recorded",
    "load_module",
    "operators_of",
    "parse_threshold",
    "time_in_turns",
    "with_times",
]
