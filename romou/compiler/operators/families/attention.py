"""Attention in one kernel: softmax(score(Q K^T)) V, without the scores in memory.

    query, key  ->  scores of a tile of keys  ->  scale, mask  ->  exponentials under the maximum so far
                ->  sums of values, rescaled whenever the maximum grows  ->  output

No operator of a graph is an attention. `romou/compiler/graph/join_chains.py` joins the product, softmax and product of
a fused graph, and both forms are measured. Q, K, V and the output may be in images, in whole texels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from romou.base.errors import InvalidConfigError
from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Choices, Columns, Config, Space
from romou.compiler.operators.analysis.form import Form, loads_of_one
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.attention.blocks import Attention, attention_of, texels_of
from romou.compiler.operators.kernels.attention.kernel import OWN, SHARED, AttentionKernel, AttentionTiles
from romou.compiler.operators.kernels.attention.tensor_core_kernel import TensorCoreAttentionKernel
from romou.compiler.operators.kernels.tensor_cores import MMA, NO_TENSOR_CORES, PRODUCTS, TENSOR_CORES, WARP
from romou.compiler.operators.native_functions import FUNCTIONS, with_functions
from romou.compiler.operators.schedule_template import ADDRESSES, Template
from romou.compiler.operators.waves import DRIVER, WAVE, with_wave
from romou.compiler.operators.workload import Workload
from romou.compiler.scheduling.blocks import find_blocks, is_regular, loads_of, reductions_of
from romou.compiler.scheduling.loops import SUB_GROUP
from romou.compiler.scheduling.rewrites import inlined
from romou.compiler.tir.expressions import bounds_of, dtype_of
from romou.compiler.tir.primitives import LANES, is_image, keep_loops
from romou.devices.backends.launch import COPIED, UNIFORM

# Tiles of 5 and 7 fit rows of 197, 77 and 49 with little padding.
KNOBS = (
    Knob(name="group_queries", choices=(1, 2, 4, 8, 16, 32), default=8, help="work-items of a group along the queries"),
    Knob(
        name="group_keys",
        choices=(4, 8, 16, 32),
        default=16,
        help="work-items of a group along the keys, and along the columns of the values",
    ),
    Knob(
        name="item_queries",
        choices=(1, 2, 3, 4, 5, 6, 8),
        default=2,
        help="queries of a work-item",
        scales_outputs=True,
    ),
    Knob(
        name="item_keys",
        choices=(1, 2, 3, 4, 5, 6, 7, 8),
        default=4,
        help="keys of a work-item in each tile of keys",
    ),
    Knob(
        name="value_tile",
        choices=(OWN, SHARED),
        default=OWN,
        help="whether a tile of values has local memory of its own, or is loaded into the memory of the key tile",
    ),
    SUB_GROUP,
    FUNCTIONS,
    TENSOR_CORES,
    WAVE,
)
# Registers of a work-item for its tiles, which leave some for addresses.
_MOST_REGISTERS, _MOST_MMA_REGISTERS = 160, 200
_FP16_BYTES = 2


class AttentionTemplate(Template):
    """The template of a function with both products and the softmax between them."""

    family = "attention"
    knobs = KNOBS

    def __init__(self, func: tirx.PrimFunc, simplified: tirx.PrimFunc, attention: Attention) -> None:
        self.func, self._simplified, self.attention = func, simplified, attention

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> AttentionTemplate | None:
        """Return the template of `func`, or None if it is no attention or accesses single lanes of an image."""
        # The cheap questions come first, because every function is asked.
        if len(find_blocks(func)) < 5 or len(reductions_of(func)) != 4:
            return None
        if not is_regular(func):
            return None
        simplified = inlined(func)
        attention = attention_of(find_blocks(simplified), {})
        images = {str(param.name) for param in func.params if is_image(param)}
        if attention is None or (images and not images <= texels_of(attention)):
            return None
        return cls(func, simplified, attention)

    @property
    def name(self) -> str:
        rows, keys, depth, columns = self.attention.extents
        batches = math.prod(self.attention.batch.values())
        return f"{self.family}_{batches}x{rows}x{keys}x{depth}" + (f"_{columns}" if columns != depth else "")

    @property
    def flops(self) -> int:
        rows, keys, depth, columns = self.attention.extents
        return int(2 * math.prod(self.attention.batch.values()) * rows * keys * (depth + columns))

    @property
    def names(self) -> Mapping[str, str]:
        (*_, query), (*_, key) = (loads_of(e) for e in (self.attention.query, self.attention.key_value))
        return {
            "data": str(query.source.name),
            "weight": str(key.source.name),
            "output": str(self.func.params[-1].name),
        }

    def tiles(self, columns: Columns) -> AttentionTiles:
        """Return the tiles of a config, or of many."""
        return AttentionTiles(self.attention, columns)

    def form(self, limits: Limits) -> AttentionForm:
        return AttentionForm(self, limits)

    def registers(self, columns: Columns) -> Any:
        """Return the registers of a work-item's tiles."""
        tiles = self.tiles(columns)
        queries, keys, sums = columns["item_queries"], columns["item_keys"], tiles.columns
        plain = queries * (keys + LANES * sums + 3) + LANES * (queries + keys + sums)
        # Scores and sums in pairs, and fragments of the queries.
        of_mma = queries * (2 * keys + 2 * sums + tiles.depth_vectors // 2 + 5) + 2 * LANES
        return np.where(tiles.is_mma, of_mma, plain)

    def multiply_adds(self, columns: Columns) -> Any:
        """Return the multiply-adds of a work-item in a tile of keys."""
        tiles, queries = self.tiles(columns), columns["item_queries"]
        plain = queries * LANES * (columns["item_keys"] * tiles.depth_vectors + tiles.keys * tiles.columns)
        of_group = tiles.queries * tiles.keys * LANES * (tiles.depth_vectors + tiles.column_vectors)
        return np.where(tiles.is_mma, of_group / tiles.threads / PRODUCTS, plain)

    def exponentials(self, columns: Columns) -> Any:
        """Return the exponentials of a work-item in a tile of keys."""
        return columns["item_queries"] * (columns["item_keys"] * (1 + self.tiles(columns).is_mma) + 1)

    def local_vectors(self, columns: Columns) -> Any:
        """Return the vectors that a work-item reads from local memory in a tile of keys."""
        tiles, queries = self.tiles(columns), columns["item_queries"]
        of_keys = tiles.depth_vectors * (queries + columns["item_keys"])
        plain = of_keys + -(-tiles.keys // LANES) * (queries + LANES * tiles.columns) + queries * tiles.across // LANES
        # A load brings each work-item 16 bytes.
        of_mma = tiles.keys * LANES * (tiles.depth_vectors + tiles.column_vectors) / WARP / (2 * LANES)
        return np.where(tiles.is_mma, of_mma, plain)

    def space(self, limits: Limits) -> Space:
        rows, keys, _, _ = self.attention.extents
        can_use_mma = limits.has_tensor_cores and self.element_bytes == _FP16_BYTES and not self.images
        choices: dict[str, Choices] = {
            "sub_group": lambda size: size in (1, limits.shuffled),
            "tensor_cores": lambda choice: choice == NO_TENSOR_CORES or (choice == MMA and can_use_mma),
            # What all work-items of a wave read is in local memory.
            WAVE.name: lambda wave: wave not in (UNIFORM, COPIED),
        }
        space = Space.of(self.knobs, limits, choices)

        def conditions(config: Columns) -> dict[str, Any]:
            tiles = self.tiles(config)
            is_mma = tiles.is_mma
            return {
                "tiles of tensor cores": ~is_mma | self._fills_fragments(config),
                "work-items of a group, device's limit": tiles.threads <= limits.max_work_group_size,
                "local memory, device's limit": tiles.local_memory_bytes <= limits.local_memory_bytes,
                "whole sub-groups with whole rows": self._fits_sub_groups(config),
                "registers for the tiles": self.registers(config)
                <= np.where(is_mma, _MOST_MMA_REGISTERS, _MOST_REGISTERS),
                "work-items along the columns less than twice the vectors": is_mma
                | (tiles.across == LANES)
                | (tiles.across < 2 * tiles.column_vectors),
                "a group less than twice as large as the rows": (tiles.queries < 2 * rows)
                | (tiles.queries == config["item_queries"] * (1 + 7 * is_mma)),
                "a tile less than twice as large as the keys": (tiles.keys < 2 * keys)
                | (config["item_keys"] == 1 + is_mma),
            }

        space.add_constraint(conditions)
        return space

    @staticmethod
    def _fills_fragments(config: Columns) -> Any:
        """Return whether a config, or which of many, has whole fragments of tensor cores, in the one spelling."""
        return (
            (config["group_keys"] == WARP)
            & (config["item_queries"] % 2 == 0)
            & (config["item_keys"] % 2 == 0)
            & (config["value_tile"] == OWN)
            & (config.get("sub_group", 1) == 1)
        )

    def _fits_sub_groups(self, config: Columns) -> Any:
        tiles, size = self.tiles(config), config.get("sub_group", 1)
        # The size of sub-groups is that of waves.
        is_free = config.get(WAVE.name, DRIVER) == DRIVER
        return (size == 1) | ((tiles.across <= size) & (tiles.threads % size == 0) & is_free)

    def default_config(self, limits: Limits) -> Config:
        """Return the config that is taken to be fastest: on tensor cores, or else without sub-groups."""
        space = self.space(limits)
        plain = space.narrowed({WAVE.name: (DRIVER,)}) if WAVE.name in space.knobs else space
        configs = [config for config in plain or space if config.get("sub_group", 1) == 1]
        on_tensor_cores = [config for config in configs if config.get("tensor_cores") == MMA]
        if on_tensor_cores:
            return min(on_tensor_cores, key=lambda config: self._keys_and_waits(config, limits))
        most = _MOST_REGISTERS if limits.registers is None else limits.registers - ADDRESSES
        fitting = [config for config in configs if self.registers(config) <= most]
        return min(fitting or configs, key=lambda config: self._cycles(config, limits))

    def _keys_and_waits(self, config: Config, limits: Limits) -> tuple[float, ...]:
        """Return the sort key of configs on tensor cores: keys of all tiles, including the wait of each tile."""
        tiles, numbers = self.tiles(config), limits.preset.attention
        waiting = tiles.key_tiles * (tiles.keys + numbers.waiting_keys)
        return waiting, abs(config["group_queries"] - numbers.warps), config["item_queries"]

    def _cycles(self, config: Config, limits: Limits) -> tuple[float, ...]:
        """Return the cycles of a core, issued and waiting ones, then the bytes of local memory as a tie-breaker."""
        tiles, costs = self.tiles(config), limits.preset.attention
        cores = limits.cores
        warps = -(-tiles.threads // limits.warp_size)
        products = self.multiply_adds(config) + costs.exponential * self.exponentials(config)
        staged = -(-tiles.keys * (tiles.depth_vectors + tiles.column_vectors) // tiles.threads)
        loads = self.local_vectors(config) + costs.staged_vector * staged
        issued = max(products / costs.partitions, costs.local_load * loads)
        in_flight = min(
            limits.max_work_group_size * costs.groups // tiles.threads,
            limits.local_memory_bytes * costs.groups // tiles.local_memory_bytes,
        )
        busy = -(-tiles.groups // cores) * warps * issued
        rounds = -(-tiles.groups // (cores * max(in_flight, 1)))
        waits = 1 if config["value_tile"] == OWN else 2
        waiting = rounds * (costs.barriers + waits * costs.memory_wait + products + loads)
        return tiles.key_tiles * (busy + waiting), tiles.local_memory_bytes

    def is_faster(self, limits: Limits, readers: int = 1) -> bool | None:
        """Return whether one kernel is taken to be faster than three before they are measured. None on phones.

        Both multiply as often, and one kernel moves no scores: four times their bytes are saved. Where tensor cores
        multiply only the operands of products, in TF32, these are so much faster that this does not pay. A few rows of
        many keys leave most cores idle, because a group reads all keys of its rows.
        """
        if limits.is_mobile:
            return None
        if limits.warp_size == 1:
            return False
        if limits.has_tensor_cores and self.element_bytes != _FP16_BYTES and limits.allows_tf32:
            return False
        tiles = self.tiles(self.default_config(limits))
        return bool(
            tiles.key_tiles == 1 or tiles.key_tiles * limits.cores <= limits.preset.attention.most_tiles * tiles.groups
        )

    def for_any_size(self, func: tirx.PrimFunc, work: Workload | None, config: Config, limits: Limits) -> tirx.PrimFunc:
        simplified = inlined(func)
        attention = attention_of(find_blocks(simplified), bounds_of(simplified))
        if attention is None:
            raise InvalidConfigError(f"{self.name}: it is no attention at all sizes")
        return AttentionTemplate(func, simplified, attention).schedule(config, limits)["main"]

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        is_mma = config.get("tensor_cores", NO_TENSOR_CORES) == MMA
        writer = TensorCoreAttentionKernel if is_mma else AttentionKernel
        kernel = writer(self._simplified, self.attention, config).function()
        if limits.is_mobile:
            # Their compilers would unroll both products, and spill.
            kernel = keep_loops(kernel, {"step"})
        return tvm.IRModule({"main": with_wave(with_functions(kernel, config), config)})


class AttentionForm(Form):
    """The formulas of one attention, over arrays of knobs. An iteration is one tile of keys."""

    def __init__(self, template: AttentionTemplate, limits: Limits) -> None:
        self._template, self._exponential = template, limits.preset.attention.exponential
        attention = template.attention
        _, _, depth, columns = attention.extents
        self._row_bytes = depth * _bytes_of(attention.key_value) + columns * _bytes_of(attention.value)
        self._outputs = attention.extents[0] * columns * math.prod(attention.batch.values())
        self._width = LANES if depth % LANES == columns % LANES == 0 else 1

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template = self._template
        tiles, registers = template.tiles(columns), template.registers(columns) + ADDRESSES
        staged = tiles.keys * self._row_bytes
        rows, keys, _, _ = template.attention.extents
        of_rows = -(-rows // tiles.queries) * tiles.queries / rows
        return KernelUsage(
            registers=registers,
            needed_registers=registers,
            buffer_bytes=staged,
            unshared_buffer_bytes=staged,
            access_width=self._width,
            output_bytes=self._outputs * template.element_bytes,
            iterations=tiles.key_tiles,
            multiply_adds=template.multiply_adds(columns) + self._exponential * template.exponentials(columns),
            local_loads=template.local_vectors(columns) * LANES * 4,
            work_group_size=tiles.threads,
            work_groups=tiles.groups,
            local_memory_bytes=tiles.local_memory_bytes,
            is_staged=True,
            images=dict.fromkeys(template.names, False),
            padding=of_rows * tiles.key_tiles * tiles.keys / keys - 1,
            element_bytes=template.element_bytes,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Return the loads as `Form.loads` does. Half of the staged numbers are keys, half are values."""
        results = columns["item_queries"] * self._template.tiles(columns).columns * LANES
        loads = loads_of_one(usage) / 2
        lines = -(
            -np.minimum(usage.work_group_size, warp_size) * self._width * self._template.element_bytes // line_bytes
        )
        return results, loads, loads, lines, lines


def _bytes_of(operand: Any) -> int:
    """Return the bytes of the numbers in memory that one element of an operand is computed from."""
    return sum(int(tvm.DataType(str(load.source.dtype)).itemsize) for load in loads_of(operand))


class AttentionFamily(Family):
    """Attention: two products and the softmax between them."""

    name = "attention"
    precedence = 2

    def template_of(self, func: tirx.PrimFunc) -> AttentionTemplate | None:
        return AttentionTemplate.of(func)

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(
                name="masked heads",
                inputs=[(2, 19, 12), (2, 23, 12), (2, 23, 10), (19, 23)],
                build=_attention,
                compute=_computed,
            )
        ]


def _attention(query: relax.Expr, key: relax.Expr, value: relax.Expr, mask: relax.Expr) -> relax.Expr:
    op = relax.op
    scores = op.multiply(op.matmul(query, op.permute_dims(key, [0, 2, 1])), relax.const(0.25, dtype_of(query)))
    return op.matmul(op.nn.softmax(op.add(scores, mask), axis=-1), value)


def _computed(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    scores = query @ key.swapaxes(-1, -2) * 0.25 + mask
    powers: np.ndarray = np.exp(scores - scores.max(-1, keepdims=True))
    result: np.ndarray = powers / powers.sum(-1, keepdims=True) @ value
    return result


FAMILY = AttentionFamily()
