"""Product of 8-bit activations with a constant matrix of 8-bit integers, which stays one byte an element in memory.

data (m, words)     weight uint32 (words, columns)     corrections int32 (n,)     output (m, n)

`operators/kernels/quantized/integer_matrix.py` shows the packing, and how zero points are corrected after the sums.
Results are exact. The graph pass `rewrite_integer_products` makes these products.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Choices, Columns, Config, Space
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.quantized.form import IntegerForm
from romou.compiler.operators.kernels.quantized.integer_kernel import (
    DOT,
    FLOAT,
    OF_STAGE,
    OF_STEP,
    OF_WORD,
    IntegerKernel,
    IntegerTiles,
)
from romou.compiler.operators.kernels.quantized.integer_matrix import (
    BYTES,
    PRODUCT,
    VECTOR,
    IntegerMatrix,
    IntegerProduct,
)
from romou.compiler.operators.kernels.quantized.outputs import Operands
from romou.compiler.operators.kernels.quantized.template import GROUP_PARTS, ITEM_DATA, PLAIN_ITEM_DATA, PackedTemplate
from romou.compiler.operators.schedule_template import ADDRESSES
from romou.compiler.tir.primitives import LANES, advance_pointers

KNOBS = (
    Knob(
        name="group_columns",
        choices=(1, 2, 4, 8, 16, 32, 64, 128),
        default=16,
        help="work-items of a group along the weight's columns",
        scales_outputs=True,
    ),
    GROUP_PARTS,
    Knob(
        name="item_columns",
        choices=(4, 8, 16, 32, 64),
        default=4,
        help="columns of the weight of a work-item",
        scales_outputs=True,
    ),
    ITEM_DATA,
    Knob(
        name="lanes",
        choices=(4, 8, 16),
        default=4,
        help="columns of a vector",
    ),
    Knob(
        name="multiply",
        choices=(DOT, FLOAT),
        default=FLOAT,
        help="whether integer dot products of four bytes or multiply-adds of floats sum up; both are exact",
    ),
    Knob(
        name="convert",
        choices=(OF_WORD, OF_STEP, OF_STAGE),
        default=OF_WORD,
        help="whether activations become floats one by one, those of a step in vectors, or a group's in local memory",
        devices="stage: CPUs",
    ),
)
# Registers of a work-item for its tiles, which leave some for addresses. Those of a CPU are as wide as vectors, and
# what it spills stays in the first-level cache.
_MOST_REGISTERS, _MOST_CPU_REGISTERS = 160, 768
# Most multiply-adds, in vectors, that a step writes out, because compilers take long for longer code.
_MOST_WRITTEN = 2048
# Work-items of a group: a GPU's, and a CPU's, whose core runs a whole group.
_GROUP, _CPU_GROUP = 64, 4
# Work-items along the columns that read a cache line together.
_LEAST_ACROSS = 8
# Lanes of a vector on a CPU, and vectors of columns of a work-item. On a Xeon with AVX-512, 8 lanes and 4 vectors take
# PoCL 3.1 and Intel's OpenCL 1.3 times as long.
_CPU_LANES, _CPU_VECTORS = 16, 2
# Rows and vectors of columns of a work-item with dot products of vectors: 16 sums in registers, for 8 loads a word.
_CPU_DOT_ROWS, _CPU_DOT_VECTORS = 4, 4


class IntegerTemplate(PackedTemplate):
    """The template of a function with one product of 8-bit integers, and element-wise operators behind it."""

    family = "integer_product"
    knobs = KNOBS
    product, annotation, block_counts = IntegerProduct, PRODUCT, (2,)
    workload: IntegerProduct

    @functools.cached_property
    def operands(self) -> Operands:
        sources, total, epilogue = self._buffers()
        # In the order of the definition: data * weight.
        data, weight = sources
        return Operands(data=data, weight=weight, product=total, epilogue=epilogue)

    @property
    def name(self) -> str:
        work = self.workload
        sign = "s8" if work.is_signed else "u8"
        zero = "" if work.zero == "none" else f"_zero_{work.zero}"
        return f"{self.family}_{work.m}x{work.k}_{work.n}_{sign}{zero}"

    def tiles(self, columns: Columns) -> IntegerTiles:
        return IntegerTiles(self.workload, columns)

    def form(self, limits: Limits) -> IntegerForm:
        return IntegerForm(self, limits)

    def registers(self, columns: Columns) -> Any:
        tiles = self.tiles(columns)
        is_float = columns["multiply"] == FLOAT
        converted = VECTOR * BYTES * (columns["convert"] == OF_STEP)
        return (
            tiles.outputs * (1 + (tiles.stages > 1))
            + tiles.item_columns * (1 + is_float)
            + (VECTOR + converted) * tiles.item_data
        )

    def space(self, limits: Limits) -> Space:
        work = self.workload
        has_dots = limits.dot_products is not None or limits.has_dot_fallback
        choices: dict[str, Choices] = {
            "item_data": lambda rows: rows in PLAIN_ITEM_DATA and (rows == 1 or rows < 2 * work.m),
            "lanes": lambda lanes: lanes <= limits.vector_lanes,
            "convert": lambda convert: convert != OF_STAGE or limits.is_cpu,
            "multiply": lambda multiply: multiply != DOT or has_dots,
            "item_columns": lambda columns: columns == LANES or columns < 2 * work.n,
        }
        space = Space.of(self.knobs, limits, choices)
        most = _MOST_CPU_REGISTERS if limits.is_cpu else _MOST_REGISTERS

        def conditions(config: Columns) -> dict[str, Any]:
            tiles = self.tiles(config)
            is_dot = config["multiply"] == DOT
            written = tiles.outputs * np.where(is_dot, VECTOR, 4 * VECTOR // config["lanes"])
            return {
                "work-items of a group, device's limit": tiles.threads <= limits.max_work_group_size,
                "local memory, device's limit": tiles.local_memory_bytes <= limits.local_memory_bytes,
                "registers for the tiles": self.registers(config) <= most,
                "whole vectors of columns": tiles.item_columns % config["lanes"] == 0,
                "a group less than twice as large as the columns": (tiles.columns < 2 * work.n) | (tiles.columns <= 16),
                "a step for each part": (tiles.parts == 1) | (tiles.parts <= tiles.steps_of_stage),
                "sums over staged rows are not split": (tiles.parts == 1) | (config["convert"] != OF_STAGE),
                "dot products convert nothing": np.logical_not(is_dot) | (config["convert"] == OF_WORD),
                "code of a step": written <= _MOST_WRITTEN,
            }

        space.add_constraint(conditions)
        return space

    def default_config(self, limits: Limits) -> Config:
        """Return tiles that fit into the registers, with sums split until the device is busy."""
        space = self.space(limits)
        lanes = min(_CPU_LANES, limits.vector_lanes) if limits.is_cpu else LANES
        multiply = DOT if limits.dot_products is not None else FLOAT
        convert = OF_STEP if limits.is_cpu and multiply == FLOAT else OF_WORD
        vectors = 1 if not limits.is_cpu else _CPU_VECTORS if multiply == FLOAT else _CPU_DOT_VECTORS
        config = space.default(lanes=lanes, item_columns=vectors * lanes, multiply=multiply, convert=convert)
        if limits.is_cpu and multiply == DOT:
            most = min(self.workload.m, _CPU_DOT_ROWS)
            rows = max(rows for rows in map(int, space.knobs["item_data"]) if rows <= most)
            return space.nearest_valid(config.replace(item_data=rows, group_columns=1))
        for rows in sorted((int(rows) for rows in space.knobs["item_data"]), reverse=True):
            config = config.replace(item_data=rows)
            if limits.is_cpu or limits.registers is None or self.registers(config) + ADDRESSES <= limits.registers:
                break
        if limits.is_cpu:
            config = config.replace(group_columns=_CPU_GROUP)
            staged = config.replace(convert=OF_STAGE)
            # One row is converted once either way, and a barrier splits the loops over the work-items of a group.
            if int(config["item_data"]) > 1 and space.is_valid(staged):
                return staged
            return config if space.is_valid(config) else space.nearest_valid(config)
        splits = [
            config.replace(group_parts=int(parts), group_columns=max(_GROUP // int(parts), _LEAST_ACROSS))
            for parts in space.knobs["group_parts"]
        ]
        return self._busy(splits, config, space, limits)

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        vector_tiles = limits.preset.vector_tiles if limits.is_cpu else None
        function = vector_tiles.multiply_add if vector_tiles is not None and limits.has_vector_arithmetic else "plain"
        multiply_add = None if function == "plain" else function
        func = IntegerKernel(
            self._simplified,
            self.workload,
            self.operands,
            config,
            multiply_add=multiply_add,
            has_dots_of_vectors=limits.is_cpu and limits.has_dot_fallback,
        ).function()
        return tvm.IRModule({"main": advance_pointers(func) if limits.is_mobile else func})


class IntegerFamily(Family):
    """Products of 8-bit integers with constant matrices."""

    name = "integer_product"

    def template_of(self, func: tirx.PrimFunc) -> IntegerTemplate | None:
        return IntegerTemplate.of(func)

    @property
    def cases(self) -> Sequence[Case]:
        return [_case(m=1, k=100, n=37), _case(m=5, k=67, n=19)]


def _case(m: int, k: int, n: int) -> Case:
    weight = np.random.default_rng(0).integers(-128, 128, (k, n))
    matrix = IntegerMatrix.pack(weight)
    assert matrix is not None, "numbers of 8 bits"

    def build(data: relax.Expr) -> relax.Expr:
        builder, work = relax.BlockBuilder.current(), IntegerProduct(m=m, k=k, n=n)
        scaled = relax.op.round(relax.op.multiply(data, relax.const(16.0, str(data.ty.dtype))))
        words = builder.emit_te(work.pack, builder.emit(relax.op.astype(relax.op.clip(scaled, -128, 127), "int8")))
        constants = map(relax.const, (matrix.words, matrix.correction(0)))
        sums = builder.emit_te(work.define, words, *constants, primfunc_name_hint="integer_product")
        # fp16 has no numbers as large as the sums.
        scaled = relax.op.multiply(relax.op.astype(sums, "float32"), relax.const(1 / 256, "float32"))
        return relax.op.astype(scaled, str(data.ty.dtype))

    def compute(data: np.ndarray) -> np.ndarray:
        result: np.ndarray = np.clip(np.round(data * 16), -128, 127) @ weight / 256
        return result

    return Case(name=f"{m}x{k}_{n}", inputs=[(m, k)], build=build, compute=compute)


FAMILY = IntegerFamily()
