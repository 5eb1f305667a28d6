"""The template of functions whose mark says what they compute of each row along an axis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import tvm
from tvm import tirx

from romou.base.limits import Limits
from romou.base.space import Choices, Config, Space
from romou.compiler.operators.schedule_template import Template
from romou.compiler.operators.workload import Workload
from romou.compiler.scheduling.loops import GROUP_ROWS, THREADS
from romou.compiler.scheduling.rewrites import as_module, with_root
from romou.compiler.tir.expressions import extents_of
from romou.compiler.tir.primitives import is_image
from romou.compiler.tir.traversal import sequence_of
from tvm_patches.onnx_converters.sorted_rows import AXIS, Rows


class MarkedTemplate(Template):
    """The template of a function that its mark describes, from tensors to one tensor.

    mark: the attribute whose text says what a row's function is.
    """

    sums_products = False
    mark: ClassVar[str]

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func
        self.axis = int(func.attrs[AXIS])
        self.rows = Rows(extents_of(func.params[0].shape), self.axis)
        self.text = str(func.attrs[self.mark])

    @classmethod
    def takes(cls, func: tirx.PrimFunc) -> bool:
        """Return whether a function has the mark, and no parameter is an image."""
        return bool(func.attrs and cls.mark in func.attrs) and not any(map(is_image, func.params))

    @property
    def name(self) -> str:
        return f"{self.family}_{'x'.join(map(str, self.func.params[0].shape))}_{self.axis}"

    @cached_property
    def dtype(self) -> str:
        """Type of the elements."""
        return str(self.func.params[0].dtype)

    def for_any_size(self, func: tirx.PrimFunc, work: Workload | None, config: Config, limits: Limits) -> tirx.PrimFunc:
        marked = func.with_attr(AXIS, self.axis).with_attr(self.mark, self.text)
        return type(self)(marked).schedule(config, limits)["main"]

    def launched(self, kernels: Sequence[tirx.Stmt], workspaces: Sequence[tirx.Buffer] = ()) -> tvm.IRModule:
        """Return the module whose `main` is the function as kernels, one after the other."""
        return as_module(with_root(self.func, sequence_of(kernels), workspaces))


class RowFunctionTemplate(MarkedTemplate):
    """The template of a function of rows that the work-items of a group share, from one tensor to one tensor."""

    knobs = (THREADS, GROUP_ROWS)

    @abstractmethod
    def most_work_items(self, limits: Limits) -> tuple[int, int]:
        """Return the most work-items that may share a row, and the most rows that a group may have."""

    @abstractmethod
    def default_threads(self, limits: Limits) -> int:
        """Return the work-items that share a row by default, if a group may have as many."""

    def space(self, limits: Limits) -> Space:
        most_threads, most_rows = self.most_work_items(limits)
        most, rows = limits.max_work_group_size, min(most_rows, 2 * self.rows.count - 1)
        choices: dict[str, Choices] = {
            THREADS.name: lambda threads: threads <= min(max(most_threads, 1), most),
            GROUP_ROWS.name: lambda group: group <= min(max(rows, 1), most),
        }
        space = Space.of(self.knobs, limits, choices)
        space.add_constraint(
            lambda config: {"work-items of a group, device's limit": config["threads"] * config["rows"] <= most}
        )
        return space

    def default_config(self, limits: Limits) -> Config:
        """Return a config near the preset's size of groups that share rows. On GPUs, a long row has a larger group."""
        group, space = min(limits.preset.streaming.row_group, limits.max_work_group_size), self.space(limits)
        most = group if limits.warp_size == 1 else limits.max_work_group_size
        threads = space.default(threads=min(most, self.default_threads(limits)))["threads"]
        return space.default(threads=threads, rows=max(1, group // threads))
