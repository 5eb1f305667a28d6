"""The template of every family of contractions: from a fused function to a knob space, from a config to a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx

from romou.base.errors import InvalidConfigError
from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.algorithms.algorithm import (
    ALGORITHM,
    DIRECT,
    TF32X3,
    WORDS,
    Algorithm,
    Contracted,
    DirectAlgorithm,
    PiecesAlgorithm,
    SplitAlgorithm,
    WinogradAlgorithm,
)
from romou.compiler.operators.algorithms.byte_vectors import WordsAlgorithm
from romou.compiler.operators.algorithms.closed_form import ClosedForm
from romou.compiler.operators.algorithms.operator import Operator
from romou.compiler.operators.algorithms.split_sum import PIECES
from romou.compiler.operators.contraction import Contraction, tensor_core
from romou.compiler.operators.contraction.knobs import FP16, FP32, KNOBS, MIXED
from romou.compiler.operators.contraction.occupancy import min_work_items, work_items
from romou.compiler.operators.native_functions import with_functions
from romou.compiler.operators.schedule_template import StoredWeight, Template
from romou.compiler.operators.waves import DRIVER, WAVE, with_wave
from romou.compiler.operators.workload import FAMILY, Workload
from romou.compiler.scheduling.blocks import (
    find_blocks,
    has_load,
    has_long_integers,
    has_vector_form,
    is_elementwise_of,
)
from romou.compiler.scheduling.loop_names import name_loops
from romou.compiler.scheduling.placement import WEIGHT, Placement
from romou.compiler.tir.expressions import FLOATS
from romou.compiler.tir.primitives import LANES, MemoryKind, advance_pointers, keep_loops, set_image
from romou.devices.backends.launch import COPIED, DIMENSIONS, UNIFORM


class ContractionTemplate(Template):
    """The template of a fused function with one sum of products: a convolution, dense layer or matrix product."""

    knobs = (ALGORITHM, *KNOBS)

    def __init__(self, contracted: Contracted) -> None:
        self.func = contracted.func
        self.contracted = contracted
        self.workload = contracted.work
        self.family = contracted.operator.name

    @classmethod
    def of(cls, func: tirx.PrimFunc, operator: Operator[Any]) -> ContractionTemplate | None:
        """Return the template for `func`, or None.

        `func` has exactly one marked block, which is the operator's, and its epilogue keeps the block's shape. 64-bit
        integers would keep the addresses at 64 bits, too.
        """
        marked = [b for b in find_blocks(func) if FAMILY in b.annotations]
        if [str(b.annotations[FAMILY]) for b in marked] != [operator.name] or has_long_integers(func):
            return None
        outputs = [int(d) for d in func.params[-1].shape]
        return (
            cls(Contracted(func, marked[0], operator))
            if outputs == [int(d) for d in marked[0].writes[0].source.shape]
            else None
        )

    def _on(self, func: tirx.PrimFunc) -> ContractionTemplate:
        """Return this template for the same function with other memory scopes."""
        template = ContractionTemplate.of(func, self.contracted.operator)
        assert template is not None, "a mark on a parameter changes nothing that the template looks at"
        return template

    @property
    def name(self) -> str:
        return f"{self.family}_{self.workload.name}"

    @property
    def flops(self) -> int:
        return self.workload.flops

    @property
    def names(self) -> dict[str, str]:
        return {role: str(buffer.name) for role, buffer in self.placement.buffers.items()}

    @property
    def element_bytes(self) -> int:
        return int(tvm.DataType(self.workload.dtype).itemsize)

    @property
    def activations(self) -> set[str]:
        """Parameters that may be in images: data, output and operands of the epilogue.

        Empty if the last axis has no lanes.
        """
        if not self.contracted.operator.works_in_texels or not self._is_vector or not has_vector_form(self.func):
            return set()
        texels = (
            p for p in self.func.params if len(p.shape) > 2 and int(p.shape[-1]) == LANES and str(p.dtype) in FLOATS
        )
        return {str(p.name) for p in texels if not any(p.same_as(weight) for weight in self.contracted.weights)}

    @property
    def factors(self) -> set[str]:
        computed = self.placement.matrices - ({WEIGHT} if self.placement.has_constant_weight else set())
        return {str(self.placement.buffers[role].name) for role in computed}

    @property
    def matrices(self) -> set[str]:
        """Return computed factors and, if sums are vectors, a whole-texel output and operands read at its place."""
        output, operator = self.func.params[-1], self.contracted.operator
        is_whole = (
            self._is_vector
            and operator.has_whole_texels(self.workload)
            and has_vector_form(self.func)
            and int(output.shape[-1]) % LANES == 0
        )
        if not (is_whole and operator.stores_rows):
            return self.factors
        in_place = {str(p.name) for p in self.func.params[:-1] if self._is_read_in_place(p)}
        return self.factors | in_place | {str(output.name)}

    def _is_read_in_place(self, parameter: tirx.Buffer) -> bool:
        """Return whether a parameter is only read at the output's place."""
        readers = [block for block in find_blocks(self.func) if has_load(block.body, parameter)]
        return bool(readers) and all(is_elementwise_of(block, parameter) for block in readers)

    @property
    def _is_vector(self) -> bool:
        """Return whether the lanes of a texel are loaded together."""
        return self.contracted.contraction(flat=True).vector

    @property
    def data(self) -> tirx.Buffer:
        """Return the parameter that is the operator's data."""
        return self.contracted.data

    @cached_property
    def placement(self) -> Placement:
        """Return the memory that data, weight and output may be in."""
        operator = self.contracted.operator
        texels = {"data", "output"} if operator.works_in_texels and self._is_vector else set()
        if operator.has_constant_weight and self._is_vector and not self.contracted.is_weight_computed:
            texels.add(WEIGHT)
        buffers = {"data": self.data, WEIGHT: self.contracted.weight, "output": self.func.params[-1]}
        is_constant = operator.has_constant_weight
        return Placement(
            func=self.func,
            buffers=buffers,
            texels=texels,
            matrices=operator.matrices(self.workload),
            has_constant_weight=is_constant,
        )

    @cached_property
    def algorithms(self) -> dict[str, Algorithm]:
        """Return choice of the knob `algorithm` -> algorithm. Operators with one algorithm lack the knob."""
        forms = self.contracted.operator.winograd(self.workload)
        others = {name: WinogradAlgorithm(self.contracted, self.placement, form) for name, form in forms.items()}
        counts = self.contracted.operator.pieces(self.workload)
        pieces = {
            name: PiecesAlgorithm(self.contracted, self.placement, count)
            for name, count in PIECES.items()
            if count in counts
        }
        return {
            DIRECT: DirectAlgorithm(self.contracted, self.placement),
            TF32X3: SplitAlgorithm(self.contracted, self.placement),
            WORDS: WordsAlgorithm(self.contracted, self.placement),
            **others,
            **pieces,
        }

    def contraction(self, flat: bool) -> Contraction:
        """Return the operator as a contraction, with its pixels in one row (flat) or row by row."""
        return self.algorithms[DIRECT].contraction(flat)

    def kept_in_buffers(self, limits: Limits) -> dict[str, str]:
        return self.placement.kept_in_buffers(limits)

    def image_scopes(self, config: Config, limits: Limits) -> dict[str, str]:
        shapes = {WEIGHT: self._algorithm(config).weight_shape}
        chosen = {
            name: self.placement.scope(role, limits, shapes.get(role))
            for role, name in self.names.items()
            if config[role] == MemoryKind.IMAGE
        }
        return {**{name: scope for name, scope in chosen.items() if scope is not None}, **self.images}

    def is_lean(self, config: Config) -> bool:
        return isinstance(self._algorithm(config), DirectAlgorithm)

    def with_fp32_sums(self, config: Config) -> Config:
        return config.replace(accumulate=FP32) if "accumulate" in config else config

    def stored_weight(self, config: Mapping[str, Any]) -> StoredWeight | None:
        return self._algorithm(config).stored_weight()

    def with_zeros(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        taken = self.contracted.operator.taken_weights(self.workload)
        if taken is None or self.contracted.is_weight_computed:
            return list(arrays)
        pairs = zip(self.func.params, arrays, strict=False)
        return [array * taken.astype(array.dtype) if p.same_as(self.contracted.weight) else array for p, array in pairs]

    def precision(self, config: Mapping[str, Any]) -> str | None:
        """Return the precision that the kernel of `config` rounds to: TF32 of factors, fp16 of sums, or None.

        The output of a sum in fp16 may be fp32: a network's last layer ends with the cast to its output.
        """
        if config["multiply_add"] == tensor_core.TF32:
            return tensor_core.TF32
        return FP16 if config.get("accumulate", FP32) in (FP16, MIXED) else None

    def space(self, limits: Limits) -> Space:
        usable, has_choice = self.usable(limits)
        spaces = {name: algorithm.space(limits) for name, algorithm in usable.items()}
        return Space.one_of(ALGORITHM, spaces) if has_choice else spaces[DIRECT]

    @property
    def number_bytes(self) -> dict[str, int]:
        """Return role -> bytes of a number in memory. The output's is the operator's, before an epilogue."""
        operands = {"data": self.data, "weight": self.contracted.weight}
        sizes = {role: int(tvm.DataType(str(buffer.dtype)).itemsize) for role, buffer in operands.items()}
        return {**sizes, "output": self.element_bytes}

    def form(self, limits: Limits) -> ClosedForm:
        return ClosedForm(self.algorithms, limits, self.number_bytes)

    def has_variant(self, limits: Limits) -> bool:
        direct = self.algorithms[DIRECT]
        return isinstance(direct, DirectAlgorithm) and direct.variant_space(limits) is not None

    def default_config(self, limits: Limits) -> Config:
        return self.starts(limits)[0]

    def starts(self, limits: Limits) -> list[Config]:
        """Return a decent config of each algorithm, and one with staged operands if there are tensor cores.

        The first config has the algorithm with the least work among the algorithms that lose few digits. Long sums that
        may be cut into pieces have the fewest pieces that keep the device busy.
        """
        usable, has_choice = self.usable(limits)
        if not has_choice:
            return usable[DIRECT].starts(limits)
        starts = {
            name: [Config({"algorithm": name, **config}) for config in algorithm.starts(limits)]
            for name, algorithm in usable.items()
        }

        def is_busy(name: str) -> bool:
            contraction, start = usable[name].contraction(flat=True), starts[name][0]
            return work_items(contraction, start) >= min_work_items(limits, contraction, start)

        sums = [name for name in usable if name == DIRECT or name in PIECES]
        # If all algorithms wait for the memory, tensor cores come first.
        in_turn = sorted(usable, key=lambda name: name != TF32X3)
        first = (
            next(filter(is_busy, sums), sums[-1])
            if len(sums) > 1
            else min(in_turn, key=lambda name: usable[name].slots(limits, limits.preset.algorithms, starts[name][0]))
        )
        others = [config for name, configs in starts.items() if name != first for config in configs]
        return [*starts[first], *others]

    def usable(self, limits: Limits) -> tuple[dict[str, Algorithm], bool]:
        """Return the algorithms that fit the device and the variant, the direct one first.

        Also return whether spaces have the knob `algorithm`. A variant leaves it a single choice.
        """
        fitting = self._fitting(limits)
        return {DIRECT: fitting[DIRECT]} if self.has_variant(limits) else fitting, len(fitting) > 1

    def _fitting(self, limits: Limits) -> dict[str, Algorithm]:
        """Return the algorithms that fit the device. On tensor cores products are cheap, so fewer are no gain."""
        direct, limits = self.algorithms[DIRECT], replace(limits, variant=None)
        if limits.has_tensor_cores and tensor_core.MMA in direct.space(limits).knobs["multiply_add"]:
            return {DIRECT: direct}
        return {name: algorithm for name, algorithm in self.algorithms.items() if algorithm.fits(limits)}

    def _algorithm(self, config: Mapping[str, Any]) -> Algorithm:
        return self.algorithms[str(config.get("algorithm", DIRECT))]

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        func = self.func
        for name, scope in self.image_scopes(config, limits).items():
            if name not in self.images:
                func = set_image(func, name, scope)
        try:
            scheduled = self._on(func).scheduled(config)
        except s_tir.ScheduleError as error:
            raise InvalidConfigError(
                f"{self.name}: TVM cannot schedule {config}: {str(error).strip().splitlines()[-1]}"
            ) from error
        return tvm.IRModule({"main": self._with_help(scheduled, config, limits)})

    def for_any_size(self, func: tirx.PrimFunc, work: Workload | None, config: Config, limits: Limits) -> tirx.PrimFunc:
        place = find_blocks(self.func).index(self.contracted.block)
        for name, scope in self.image_scopes(config, limits).items():
            func = set_image(func, name, scope)
        block, operator = find_blocks(func)[place], self.contracted.operator
        contracted = Contracted(func=func, block=block, operator=operator, symbolic=work)
        summed = next(iter(contracted.contraction(flat=True).reduce.values()))
        if not isinstance(summed, int) and (config["split_k"] > 1 or config["local"] or tensor_core.is_mma(config)):
            raise InvalidConfigError(
                f"{self.name}: a sum over a size is in one piece, not staged, without tensor cores"
            )
        scheduled = name_loops(self.direct(contracted, config))
        return self._with_help(with_functions(scheduled, config), config, limits)

    def direct(self, contracted: Contracted, config: Config) -> tirx.PrimFunc:
        """Return a function of this template, with its sums or with sizes in it, scheduled by the direct algorithm."""
        return DirectAlgorithm(contracted, self.placement).schedule(config).mod["main"]

    def configs_for_any_size(self, config: Config, limits: Limits) -> list[Config]:
        """Return configs like one of this template, the likest first.

        A sum over a size is in one piece, not staged, without tensor cores.
        """
        space, direct = self.space(limits), self.algorithms[DIRECT].space(limits)
        whole = {"split_k": (1,), "local": (0,), "multiply_add": direct.knobs["multiply_add"]}
        plain = replace(limits, has_tensor_cores=False, has_cooperative_matrices=False)
        starts = [config, *self.starts(limits), *map(space.completed, self.starts(plain))]
        part = direct.narrowed({name: choices for name, choices in whole.items() if name in direct.knobs})
        if part is not None:
            named = {"algorithm": DIRECT} if "algorithm" in space.declared else {}
            starts += [Config({**named, **part.nearest_valid(Config({n: s[n] for n in part.knobs}))}) for s in starts]
        lean = filter(self.is_lean, starts)
        return [each for each in dict.fromkeys(lean) if space.knows(each) and space.is_valid(each)]

    def _with_help(self, scheduled: tirx.PrimFunc, config: Config, limits: Limits) -> tirx.PrimFunc:
        """Return a scheduled function with the loops and pointers that a phone's compiler should keep."""
        # Pointers advance only over buffers that the kernel reads without staging. Images have no addresses, and only
        # phones' compilers need the help.
        is_direct = config.get("algorithm", DIRECT) == DIRECT
        reads_images = is_direct and config["data"] == config["weight"] == MemoryKind.IMAGE
        reads_buffers = not config["local"] and not reads_images
        # A pointer hides that all work-items of a wave load the same.
        is_uniform = config.get(WAVE.name, DRIVER) in (UNIFORM, COPIED)
        has_pointers = limits.is_mobile and reads_buffers and not is_uniform
        read_ahead = limits.preset.registers.read_ahead if limits.preset.registers is not None else 1
        scheduled = keep_loops(scheduled, self._algorithm(config).kept_loop_names(config, limits))
        return with_wave(advance_pointers(scheduled, read_ahead) if has_pointers else scheduled, config)

    def scheduled(self, config: Config) -> tirx.PrimFunc:
        """Return the function scheduled by `config`. Its parameters are already in the config's images.

        Raise `s_tir.ScheduleError` if TVM's scheduler refuses the config.
        """
        algorithm = self._algorithm(config)
        func, lines = name_loops(algorithm.schedule(config).mod["main"]), algorithm.dimensions(config)
        return with_functions(func if lines is None else func.with_attr(DIMENSIONS, lines), config)
