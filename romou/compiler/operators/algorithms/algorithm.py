"""The algorithms of a contraction: direct sums, tensor cores, Winograd's transforms, or a long sum in pieces.

Each has a knob space, decent configs and a schedule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, te, tirx

from romou.base.knob import Choice, Knob
from romou.base.limits import Limits
from romou.base.preset import Algorithms
from romou.base.space import Config, Space
from romou.base.variants import VARIANTS
from romou.compiler.operators.algorithms.operator import Operator
from romou.compiler.operators.algorithms.split_sum import PIECES, build_pieces, bytes_between, schedule_pieces
from romou.compiler.operators.algorithms.split_sum import STAGES as PIECES_STAGES
from romou.compiler.operators.algorithms.winograd.convolution import (
    STAGES,
    TILES,
    TRANSFORMED,
    TransformedWeight,
    Winograd,
)
from romou.compiler.operators.algorithms.winograd.filter_gradient import STAGES as FILTER_STAGES
from romou.compiler.operators.contraction import Contraction, tensor_core, tensor_core_schedule
from romou.compiler.operators.contraction.defaults import default_config
from romou.compiler.operators.contraction.dimensions import describe
from romou.compiler.operators.contraction.knobs import GROUP, MIXED, MOST_MIXED, space_of, store_constraints, sums_of
from romou.compiler.operators.contraction.registers import kept_loops
from romou.compiler.operators.contraction.schedule import (
    PACKED,
    is_computed,
    schedule_group_store,
    schedule_packing,
    schedule_stages,
    skip_taps,
)
from romou.compiler.operators.contraction.stages import BLOCKS, Stage, build_stages
from romou.compiler.operators.contraction.tensor_core_defaults import PARTITIONS, other_start, split_cycles
from romou.compiler.operators.native_functions import FUNCTIONS, function_choices
from romou.compiler.operators.schedule_template import StoredWeight
from romou.compiler.operators.waves import WAVE
from romou.compiler.operators.workload import WORKLOAD, Workload
from romou.compiler.scheduling.blocks import find_blocks, read_buffers
from romou.compiler.scheduling.loops import Block
from romou.compiler.scheduling.placement import WEIGHT, Placement
from romou.compiler.scheduling.rewrites import as_module, replace_stage
from romou.compiler.tir.expressions import bounds_of, bytes_of, extents_of
from romou.compiler.tir.primitives import LANES, MemoryKind, is_image, replace_parameter
from romou.devices.backends.launch import COPIED

# The choice of the knob `algorithm` that every operator has, and that of products of floats on tensor cores.
DIRECT, TF32X3 = "direct", tensor_core.TF32X3
# The choice of convolutions of bytes on CPUs (`byte_vectors.py`).
WORDS = "words"
ALGORITHM = Knob(
    name="algorithm",
    choices=(DIRECT, *TILES, *PIECES, TF32X3, WORDS),
    default=DIRECT,
    absent=DIRECT,
    help=(
        "sum the products; Winograd's way with tiles of 2, 4 or 6 pixels a side; a long sum in pieces, which a"
        " second kernel adds up in their order; products of floats on tensor cores, each three products of TF32; or"
        " bytes in vectors of 16 pixels, which `tile_w` counts"
    ),
)


# Type of the numbers between the kernels -> smallest side of an input tile that loses too many digits for a default.
_INEXACT_SIDE = {"float32": 7, "float16": 5}


@dataclass(frozen=True)
class Contracted:
    """The block of a fused function that is an operator's plain definition.

    symbolic: the numbers of the operator, if some are expressions of sizes at run time.
    """

    func: tirx.PrimFunc
    block: s_tir.SBlock
    operator: Operator[Any]
    symbolic: Workload | None = None

    @property
    def work(self) -> Workload:
        """Return the numbers of the operator."""
        if self.symbolic is not None:
            return self.symbolic
        workload: Workload = self.operator.workload.from_json(str(self.block.annotations[WORKLOAD]))
        return workload

    @property
    def data(self) -> tirx.Buffer:
        """Return the first factor."""
        return read_buffers(self.block)[0]

    @property
    def weight(self) -> tirx.Buffer:
        """Return the second factor."""
        return read_buffers(self.block)[1]

    @property
    def window(self) -> tuple[int, ...] | None:
        """Return the sides of the window. None for a matrix product."""
        kernel = self.work.to_dict().get("kernel")
        return (kernel,) if isinstance(kernel, int) else kernel

    @property
    def is_weight_computed(self) -> bool:
        """Return whether each call packs the weight (`schedule_packing`)."""
        return is_computed(self.func, self.weight)

    @property
    def weights(self) -> list[tirx.Buffer]:
        """Return the second factor, and the weight that it is packed from if each call packs it."""
        packing = [b for b in find_blocks(self.func) if b.writes and b.writes[0].source.same_as(self.weight)]
        return [self.weight, *(buffer for block in packing for buffer in read_buffers(block))]

    @property
    def factors(self) -> tuple[te.Tensor, te.Tensor]:
        """Return both factors as placeholders."""
        data, weight = (te.placeholder(extents_of(b.shape), str(b.dtype), b.name) for b in (self.data, self.weight))
        return data, weight

    def contraction(self, flat: bool) -> Contraction:
        """Return the sum of products, with its pixels in one row (flat) or row by row."""
        return self.operator.contraction(self.work, *self.factors, flat, is_image(self.data))


class Algorithm(ABC):
    """A way to compute a contraction.

    placement: memory of the operator's tensors.
    transform_bytes: bytes that kernels around the contraction read and write.
    transform_registers: fewest 32-bit registers of a work-item of these kernels.
    is_exact: whether it loses few enough digits for a default config.
    """

    transform_bytes: int = 0
    transform_registers: int = 0
    is_exact: bool = True

    def __init__(self, contracted: Contracted, placement: Placement) -> None:
        self.contracted = contracted
        self.placement = placement
        self.work = contracted.work

    @abstractmethod
    def contraction(self, flat: bool) -> Contraction:
        """Return the sum of products, with its pixels in one row (flat) or row by row."""

    def space(self, limits: Limits) -> Space:
        """Return the knobs of this algorithm on a device with these limits."""
        form = self.contraction(flat=True)
        own = {**self._own_choices(limits), "pixels": self.pixels, "accumulate": sums_of(form, self.work.dtype, limits)}
        # Only a single kernel takes the memory of waves.
        own[WAVE.name] = [choice for choice in WAVE.choices if choice != COPIED]
        return space_of(form, form, limits, self.work.dtype, own)

    @property
    def pixels(self) -> Sequence[Choice]:
        """Return the choices of the knob `pixels`. The pixels of most transforms are in one order."""
        return ()

    def starts(self, limits: Limits) -> list[Config]:
        """Return decent configs, the best guess first."""
        form = self.contraction(flat=True)
        return [default_config(self.space(limits), form, form, limits)]

    @abstractmethod
    def schedule(self, config: Config) -> s_tir.Schedule:
        """Return the scheduled function. Raise `s_tir.ScheduleError` if TVM's scheduler refuses the config."""

    def dimensions(self, config: Config) -> str | None:
        """Return lines that name the dimensions of the kernel's ids and arrays. None for several kernels."""
        return None

    def slots(self, limits: Limits, costs: Algorithms, start: Config) -> float:
        """Return the time that all kernels take with the config `start`, in instruction slots of all cores.

        Each kernel computes, waits for the loads of a work-item or for the memory, whichever takes longer.
        """
        tensors = (self.contracted.data, self.contracted.weight, self.contracted.func.params[-1])
        moved = sum(bytes_of(tensor.shape, str(tensor.dtype)) for tensor in tensors)
        numbers = moved // tvm.DataType(self.work.dtype).itemsize
        computed = self._product_slots(limits, costs) * self.work.flops / 2
        return self._kernel_slots(limits, costs, max(computed, self._waiting_slots(limits, costs, start)), numbers)

    def _waiting_slots(self, limits: Limits, costs: Algorithms, start: Config) -> float:
        """Return the time of one work-item that waits for each step of its sum over a window. 0 without a window.

        On tensor cores a step has many products, whose time is known.
        """
        contraction = self.contraction(flat=_is_flat(start))
        texels, *window, _ = contraction.reduce.values()
        if math.prod(window) == 1 or tensor_core.is_mma(start):
            return 0.0
        return costs.window_step * float(texels * math.prod(window)) / int(start["split_k"])

    def _product_slots(self, limits: Limits, costs: Algorithms) -> float:
        _, *step = self.contraction(flat=True).reduce.values()
        is_long = self.work.dtype == "float16" and limits.prefers_fp16 and math.prod(step) > MOST_MIXED
        return costs.long_fp16_product if is_long else costs.product

    def _kernel_slots(self, limits: Limits, costs: Algorithms, instructions: float, numbers: int) -> float:
        per_byte = limits.instructions_per_byte or costs.per_byte
        return max(instructions, per_byte * int(tvm.DataType(self.work.dtype).itemsize) * numbers)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return the shape of the weight that the kernel reads."""
        return tuple(int(d) for d in self.contracted.weight.shape)

    def stored_weight(self) -> StoredWeight | None:
        """Return the form of the weight that the kernel reads. None for the function's own form."""
        return None

    def fits(self, limits: Limits) -> bool:
        """Return whether the kernels around the contraction fit the device."""
        return True

    def kept_loop_names(self, config: Config, limits: Limits) -> Sequence[str]:
        """Return the names of outer loops of a sum that a compiler must not unroll."""
        if config["local"]:
            return ()
        contraction = self.contraction(flat=_is_flat(config))
        kept = list(contraction.reduce)[: kept_loops(contraction, config, limits)]
        # The first axis is two loops then, and the inner one is short.
        return (BLOCKS, *kept[len(kept) == 1 :]) if kept and config["accumulate"] == MIXED else kept

    def _own_choices(self, limits: Limits) -> dict[str, Sequence[Choice]]:
        """Return the choices that do not follow from extents: memory of the tensors, functions of the epilogue."""
        return {
            role: self.placement.choices(role, limits, self.weight_shape if role == WEIGHT else None)
            for role in self.placement.buffers
        } | {FUNCTIONS.name: function_choices(self.contracted.func)}


class DirectAlgorithm(Algorithm):
    """Products of the two factors as they are."""

    def contraction(self, flat: bool) -> Contraction:
        return self.contracted.contraction(flat)

    def space(self, limits: Limits) -> Space:
        part = self.variant_space(limits)
        return self._whole_space(limits) if part is None else part

    def variant_space(self, limits: Limits) -> Space | None:
        """Return the part of the space that is the device's variant. None if the operator does not have it."""
        variant = None if limits.variant is None else VARIANTS[limits.variant]
        if variant is None or not variant.is_of(self.contracted.window):
            return None
        return self._whole_space(limits, variant.choices.get("store", ())).narrowed(variant.choices)

    def _whole_space(self, limits: Limits, stores: Sequence[Choice] = (), *, splits_floats: bool = False) -> Space:
        """Return the space.

        stores: choices of the knob `store`, which only some variants have.
        splits_floats: whether tensor cores may multiply floats that are split.
        """
        count = self.contracted.operator.pixel_rows(self.work)
        pixels = [] if count is None else ["flat", "rows"] if count > 1 else ["flat"]
        flat, rows = (self.contraction(flat=is_flat) for is_flat in (True, False))
        sums = sums_of(flat, self.work.dtype, limits)
        own = {**self._own_choices(limits), "pixels": pixels, "accumulate": sums, "store": stores}
        space = space_of(flat, rows, limits, self.work.dtype, own, splits_floats=splits_floats)
        if stores:
            space.add_constraint(lambda config: store_constraints(config, self.contracted.operator.stores_rows))
        if len(pixels) > 1:
            # An image is addressed by row and column: pixels in one row would need a division for each texel.
            space.add_constraint(
                lambda config: {
                    "pixels in rows, if data is an image": (config["data"] == MemoryKind.BUFFER)
                    | (config["pixels"] == "rows")
                }
            )
        images = [p for p in self.contracted.func.params if is_image(p)]
        if flat.vector and images:
            space.add_constraint(
                lambda config: {"whole texels, if a tensor is an image": config["vector_width"] == LANES}
            )
        if any(not any(image.same_as(own) for own in self.placement.buffers.values()) for image in images):
            # A split of more work-items than texels stores single lanes, and the epilogue reads whole texels.
            space.add_constraint(
                lambda config: {
                    "a split of no more work-items than texels, if the epilogue reads images": config["split_k"]
                    <= config["tile_o"] * config["tile_h"] * config["tile_w"]
                }
            )
        return space

    def starts(self, limits: Limits) -> list[Config]:
        """Return the default config, and one with staged operands if there are tensor cores."""
        return self._starts_in(self.space(limits), limits)

    def _starts_in(self, space: Space, limits: Limits) -> list[Config]:
        direct = default_config(space, self.contraction(flat=True), self.contraction(flat=False), limits)
        direct = direct if limits.variant is None else space.nearest_valid(direct)
        contraction = self.contraction(flat=_is_flat(direct))
        other = other_start(space, contraction, direct, limits)
        return [direct] if other is None else [direct, other]

    def schedule(self, config: Config) -> s_tir.Schedule:
        contracted, is_mma = self.contracted, tensor_core.is_mma(config)
        contraction = self.contraction(flat=_is_flat(config))
        if is_mma:
            contraction = tensor_core.regroup(contraction, config)
        func = replace_stage(contracted.func, contracted.block, build_stages(contraction, config))
        # TVM does not prove that the padded domain covers what is read of it, if extents follow from sizes.
        sch = s_tir.Schedule(as_module(func), enable_check=not bounds_of(func))
        sch, loops = contracted.operator.output_loops(sch, inline_epilogue(sch), self.work, config)
        has_whole_texels = contracted.operator.has_whole_texels(self.work)
        if config.get("store") == GROUP:
            is_along_channels = contracted.operator.stores_rows
            schedule_group_store(
                sch, loops, config, is_along_channels=is_along_channels, has_whole_texels=has_whole_texels
            )
        else:
            schedule = tensor_core_schedule.schedule_stages if is_mma else schedule_stages
            schedule(sch, loops, list(contraction.reduce), config, has_whole_texels=has_whole_texels)
        schedule_packing(sch)
        if contraction.has_tap is None or is_mma:
            return sch
        return s_tir.Schedule(as_module(skip_taps(sch.mod["main"], contraction, config)), enable_check=False)

    def dimensions(self, config: Config) -> str | None:
        contracted = self.contracted
        buffers = (contracted.data, contracted.weight, contracted.func.params[-1])
        return describe(self.contraction(flat=_is_flat(config)), config, buffers)


class SplitAlgorithm(DirectAlgorithm):
    """Products of floats on tensor cores, in the precision of fp32: each float is the sum of two numbers of TF32."""

    def fits(self, limits: Limits) -> bool:
        form = self.contraction(flat=True)
        has_choice = tensor_core.instruction(self.work.dtype, limits) == TF32X3
        return has_choice and tensor_core.can_use(form) and form.extents[-1] >= tensor_core.PAIR

    def space(self, limits: Limits) -> Space:
        part = self._whole_space(limits, splits_floats=True).narrowed({"multiply_add": (TF32X3,)})
        assert part is not None, "the operator can use tensor cores"
        return part

    def starts(self, limits: Limits) -> list[Config]:
        starts = self._starts_in(self._whole_space(limits, splits_floats=True), limits)
        return sorted(starts, key=lambda start: self._cycles(limits, start)) if self._has_taps else starts

    @property
    def _has_taps(self) -> bool:
        _texel, *window, _lane = self.contraction(flat=True).reduce.values()
        return math.prod(window) > 1

    def _cycles(self, limits: Limits, start: Config) -> float:
        return split_cycles(self.contraction(flat=_is_flat(start)), start, limits.preset, limits.cores)

    def _product_slots(self, limits: Limits, costs: Algorithms) -> float:
        return limits.preset.split_products.product

    def _waiting_slots(self, limits: Limits, costs: Algorithms, start: Config) -> float:
        return self._cycles(limits, start) * limits.cores * PARTITIONS * limits.warp_size if self._has_taps else 0.0


class WinogradAlgorithm(Algorithm):
    """Products between transforms of the data and of the output, which are separate kernels."""

    def __init__(self, contracted: Contracted, placement: Placement, form: Winograd) -> None:
        super().__init__(contracted, placement)
        self.form = form
        weights = (
            math.prod((*form.weight_shape, 1)) + math.prod(int(d) for d in contracted.weight.shape)
            if contracted.is_weight_computed
            else 0
        )
        self.transform_bytes = tvm.DataType(self.work.dtype).itemsize * (form.transform_elements + weights)
        self.transform_registers = form.transform_registers
        # Only a search accepts the digits that larger tiles lose.
        self.is_exact = form.side < _INEXACT_SIDE[self.work.dtype]

    def slots(self, limits: Limits, costs: Algorithms, start: Config) -> float:
        form = self.form
        if not self.is_exact:
            return math.inf
        products = form.products * form.work.in_channels * form.work.out_channels
        between = LANES * form.side**2 * form.tiles * (form.in_texels + form.work.out_texels)
        moved = costs.transformed_number * form.transform_elements
        transforms = self._kernel_slots(limits, costs, moved, form.transform_elements)
        read = between + math.prod(form.weight_shape)
        return transforms + self._kernel_slots(limits, costs, costs.product * products, read) + costs.launches

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.form.weight_shape

    @property
    def _is_weight_stored(self) -> bool:
        """Return whether the second factor is a constant, which is transformed when the model is compiled."""
        return self.contracted.operator.has_constant_weight and not self.contracted.is_weight_computed

    def contraction(self, flat: bool) -> Contraction:
        """Return the products of all positions of the tiles. The pixels do not depend on `flat`."""
        shapes = {TRANSFORMED: self.form.transformed_shape, "weight": self.form.weight_shape}
        return self.form.contraction(*(te.placeholder(shape, self.work.dtype, name) for name, shape in shapes.items()))

    @property
    def pixels(self) -> Sequence[Choice]:
        # Tiles are in rows under any choice, so the knob keeps only the choice that images need.
        return () if self.contracted.operator.pixel_rows(self.work) is None else ("rows",)

    def space(self, limits: Limits) -> Space:
        space = super().space(limits)
        space.add_constraint(lambda config: {"whole texels in Winograd's products": config["vector_width"] == LANES})
        return space

    def fits(self, limits: Limits) -> bool:
        return self.form.fits(limits)

    def stored_weight(self) -> StoredWeight | None:
        if not self._is_weight_stored:
            return None
        return TransformedWeight(
            name=str(self.contracted.weight.name),
            shape=self.form.weight_shape,
            tile=self.form.tile,
            stride=self.form.work.stride,
        )

    def schedule(self, config: Config) -> s_tir.Schedule:
        contracted = self.contracted
        data = te.placeholder([int(d) for d in contracted.data.shape], self.work.dtype, "data")
        shape = self.form.weight_shape if self._is_weight_stored else [int(d) for d in contracted.weight.shape]
        weight = te.placeholder(shape, self.work.dtype, "weight")
        func = replace_stage(
            contracted.func,
            contracted.block,
            self.form.build(data, weight, config, is_zero_outside=is_image(contracted.data)),
        )
        if self._is_weight_stored:
            func = replace_parameter(func, str(contracted.weight.name), shape=self.form.weight_shape)
        sch = s_tir.Schedule(as_module(func))
        sch = self.form.schedule(sch, inline_epilogue(sch), config)
        schedule_packing(sch)
        return sch


class PiecesAlgorithm(Algorithm):
    """A long sum in pieces, which a second kernel adds up (`romou/compiler/operators/algorithms/split_sum.py`)."""

    def __init__(self, contracted: Contracted, placement: Placement, count: int) -> None:
        super().__init__(contracted, placement)
        self.count = count
        self.transform_bytes = bytes_between(self.contraction(flat=True))

    def contraction(self, flat: bool) -> Contraction:
        return self.contracted.operator.in_pieces(self.work, *self.contracted.factors, self.count)

    def kept_loop_names(self, config: Config, limits: Limits) -> Sequence[str]:
        return ()

    def schedule(self, config: Config) -> s_tir.Schedule:
        contracted, form = self.contracted, self.contraction(flat=True)
        whole = contracted.contraction(flat=True)
        func = replace_stage(contracted.func, contracted.block, build_pieces(form, whole, config))
        sch = s_tir.Schedule(as_module(func))
        sch, loops = contracted.operator.output_loops(sch, inline_epilogue(sch), self.work, config)
        schedule_pieces(sch, loops, list(form.reduce), config)
        return sch


def inline_epilogue(sch: s_tir.Schedule) -> Block:
    """Inline all blocks between the contraction and the output. Return the output block."""
    root = sch.get_sblock("root")
    (output,) = sch.get_output_blocks(root)
    stages = set(Stage) - {Stage.CROP} | STAGES | FILTER_STAGES | PIECES_STAGES | {PACKED}
    for block in sch.get_child_blocks(root):
        if sch.get(block).name_hint not in stages and not sch.get(block).same_as(sch.get(output)):
            sch.compute_inline(block)
    return output


def _is_flat(config: Config) -> bool:
    return bool(config.get("pixels", "flat") == "flat")
