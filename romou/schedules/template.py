"""From a fused function to its knob space, and from a config to its schedule; the same for every family of contractions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, te, tirx

from romou.core.errors import InvalidConfigError
from romou.core.limits import Limits
from romou.core.space import Config, Space
from romou.schedules import FAMILIES
from romou.schedules.base import Template
from romou.schedules.contraction import Contraction, tensor_core, tensor_core_schedule
from romou.schedules.contraction.defaults import default_config, staged_config
from romou.schedules.contraction.knobs import KNOBS, space_of
from romou.schedules.contraction.schedule import schedule_stages
from romou.schedules.contraction.stages import build_stages
from romou.schedules.splice import as_module, find_blocks, renest, replace_stage
from romou.schedules.winograd import ALGORITHM, DIRECT, STAGES, TILES, TRANSFORMED, StoredWeight, Winograd, algorithms
from romou.schedules.workload import BatchMatmul, Conv2d, Conv2dTranspose, Dense
from romou.tir.primitives import FREE_IMAGES, LANES, image_extents, is_image, replace_parameter, set_image

Workload: TypeAlias = Conv2d | Dense | BatchMatmul
_KINDS: dict[str, type[Workload]] = {"dense": Dense, "batch_matmul": BatchMatmul, "conv2d_transpose": Conv2dTranspose}


class ContractionTemplate(Template):
    """The template of convolutions, dense layers and products of matrices."""

    knobs = (ALGORITHM, *KNOBS)

    def __init__(self, func: tirx.PrimFunc, block: s_tir.SBlock):
        self.func = func
        self.block = block
        self.family = str(block.annotations["romou.family"])
        self.workload: Workload = _KINDS.get(self.family, Conv2d).from_json(str(block.annotations["romou.workload"]))

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> ContractionTemplate | None:
        """The template for `func`: it holds exactly one block of a family, and the epilogue keeps that block's shape."""
        marked = [b for b in find_blocks(func) if "romou.family" in b.annotations]
        if len(marked) != 1:
            return None
        outputs = [int(d) for d in func.params[-1].shape]
        if outputs != [int(d) for d in marked[0].writes[0].source.shape]:
            return None
        return cls(func, marked[0])

    @property
    def name(self) -> str:
        """Readable name of the operator."""
        return f"{self.family}_{self.workload.name}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of one call, epilogue not counted."""
        return self.workload.flops

    def space(self, limits: Limits) -> Space:
        """The knobs of this operator on a device with these limits."""
        direct = self._direct_space(limits)
        names = () if _has_fast_products(direct) else self._others(limits)
        others = {name: self._winograd_space(name, limits) for name in names}
        return Space.one_of(ALGORITHM, {DIRECT: direct, **others}) if others else direct

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Choices of the knob `algorithm`, which operators with a single one lack."""
        return (DIRECT, *(algorithms(self.workload) if self.family == "conv2d" and isinstance(self.workload, Conv2d) else ()))

    def _others(self, limits: Limits) -> list[str]:
        """The algorithms besides the direct one whose transforms the device has room for."""
        forms = {name: self._winograd(name) for name in self.algorithms[1:]}
        return [name for name, form in forms.items() if form is not None and form.fits(limits)]

    def _winograd_space(self, algorithm: str, limits: Limits) -> Space:
        form = self.contraction(flat=False, config={"algorithm": algorithm})
        # Tiles stand in rows whatever the knob says; of several choices it keeps the one that images need.
        own = {ALGORITHM.name: (), **self._places_of_all(limits, algorithm), "pixels": ["rows"], "accumulate": ["float32"]}
        space = space_of(self.knobs, form, form, limits, self.workload.dtype, own)
        space.add_constraint(lambda config: config["vector_width"] == LANES)
        return space

    def _direct_space(self, limits: Limits) -> Space:
        pixels: list[str] = []
        if isinstance(self.workload, Conv2d):
            has_rows = (self.workload.phases if isinstance(self.workload, Conv2dTranspose) else self.workload).out_hw[0] > 1
            pixels = ["flat", "rows"] if has_rows else ["flat"]
        # fp16 is summed as fp16 only where that is faster; the sum of a long reduction loses digits, which the check of a trial sees.
        sums = ["float32", "float16"] if self.workload.dtype == "float16" and limits.has_half_arithmetic else ["float32"]
        own = {ALGORITHM.name: (), **self._places_of_all(limits), "pixels": pixels, "accumulate": sums}
        # The flat form has the longer rows: every tile that makes sense row by row makes sense there too.
        space = space_of(self.knobs, self.contraction(flat=True), self.contraction(flat=False), limits, self.workload.dtype, own)
        if len(pixels) > 1:
            # An image is addressed by row and column: pixels in one row would need a division for each texel.
            space.add_constraint(lambda config: (config["data"] == "buffer") | (config["pixels"] == "rows"))
        if self.images:
            space.add_constraint(lambda config: config["vector_width"] == LANES)
        return space

    def _places_of_all(self, limits: Limits, algorithm: str = DIRECT) -> dict[str, list[str]]:
        return {name: self._places(name, limits, algorithm) for name in ("data", "weight", "output")}

    def _places(self, name: str, limits: Limits, algorithm: str = DIRECT) -> list[str]:
        """Where the operator's data, weight or output may lie: activations where the graph put them, unless it leaves them free."""
        buffer = {"data": self._data, "weight": self._weight, "output": self.func.params[-1]}[name]
        if is_image(buffer):
            return ["image"]
        is_free = name == "weight" or (self.func.attrs is not None and FREE_IMAGES in self.func.attrs)
        return ["buffer", "image"] if is_free and self._scope(name, limits, algorithm) is not None else ["buffer"]

    def _scope(self, name: str, limits: Limits, algorithm: str = DIRECT) -> str | None:
        """The texture scope under which data, weight or output fits into an image; None where none does, or images are not wanted."""
        return next((scope for scope, reason in self._scopes(name, limits, algorithm) if reason is None), None)

    def kept_in_buffers(self, limits: Limits) -> dict[str, str]:
        """Data, weight or output that the schedule could read from an image but that fits into none -> why."""
        found = {}
        for name in ("data", "weight", "output"):
            reasons = [reason for _, reason in self._scopes(name, limits)]
            if reasons and all(reasons):
                found[name] = str(reasons[-1])
        return found

    def _scopes(self, name: str, limits: Limits, algorithm: str = DIRECT) -> Iterator[tuple[str, str | None]]:
        """Texture scopes that hold the lanes of data, weight or output as texels, each with what is too large for it."""
        buffer = {"data": self._data, "weight": self._weight, "output": self.func.params[-1]}[name]
        form, most = self._winograd(algorithm) if name == "weight" else None, limits.max_image
        shape = [int(d) for d in buffer.shape] if form is None else form.weight_shape
        has_texels = self.contraction(flat=True).vector if name == "weight" else self.works_in_texels
        is_computed = name == "weight" and isinstance(self.workload, BatchMatmul)
        if most is None or shape[-1] != LANES or not has_texels or is_computed:
            return
        for scope in ("global.texture-weight", "global.texture") if name == "weight" else ("global.texture",):
            sides = zip(("width", "height", "layers"), image_extents(shape, scope), most, strict=True)
            yield scope, next((f"its {side} would be {extent} texels, the device allows {limit}" for side, extent, limit in sides if extent > limit), None)

    @property
    def _data(self) -> tirx.Buffer:
        """The operator's first input."""
        return self._reads[0]

    @property
    def _weight(self) -> tirx.Buffer:
        """The operator's second input."""
        return self._reads[1]

    def image_scopes(self, config: Config, limits: Limits) -> dict[str, str]:
        """Parameter name -> memory scope, for the parameters that lie in images under `config`."""
        chosen = {name: self._scope(role, limits, _algorithm(config)) for role, name in self.names.items() if config[role] == "image"}
        return {**{n: s for n, s in chosen.items() if s is not None}, **self.images}

    @property
    def names(self) -> dict[str, str]:
        """Of the parameters that are the operator's "data" and "weight" and the function's "output"."""
        buffers = {"data": self._data, "weight": self._weight, "output": self.func.params[-1]}
        return {role: str(buffer.name) for role, buffer in buffers.items()}

    def weight_scope(self, limits: Limits, algorithm: str = DIRECT) -> str | None:
        """The texture scope of the weight where it lies in an image; None where it cannot."""
        return self._scope("weight", limits, algorithm)

    def transform_bytes(self, config: Mapping[str, Any]) -> int:
        """What kernels beside the contraction read and write, in bytes: the transforms of the algorithms that have some."""
        form = self._winograd(_algorithm(config))
        return 0 if form is None else self.element_bytes * form.transform_elements

    def transform_registers(self, config: Mapping[str, Any]) -> int:
        """The 32-bit registers that a work-item of these kernels needs at least."""
        form = self._winograd(_algorithm(config))
        return 0 if form is None else form.transform_registers

    def operands(self, config: Mapping[str, Any]) -> dict[str, int]:
        """The two buffers that the contraction reads; what the epilogue reads is no part of the reduction's traffic."""
        data = self.names["data"] if _algorithm(config) == DIRECT else TRANSFORMED
        return dict.fromkeys((data, self.names["weight"]), self.element_bytes)

    def outputs(self, config: Mapping[str, Any]) -> int:
        """Numbers that the contraction gives, whole texels counted."""
        return math.prod(self.contraction(flat=True, config=config).extents) * LANES

    def stored_weight(self, config: Mapping[str, Any]) -> StoredWeight | None:
        """How the kernel of `config` wants the weight; None where it takes the packed one as it is."""
        form = self._winograd(_algorithm(config))
        return None if form is None else StoredWeight(name=self.names["weight"], shape=form.weight_shape, tile=form.tile)

    def precision(self, config: Mapping[str, Any]) -> str | None:
        """As `Template.precision`: TF32 where the config has it."""
        return tensor_core.TF32 if config["multiply_add"] == tensor_core.TF32 else None

    def _winograd(self, algorithm: str) -> Winograd | None:
        if algorithm == DIRECT:
            return None
        assert isinstance(self.workload, Conv2d), "only the spaces of convolutions have the knob"
        return Winograd(self.workload, TILES[algorithm])

    @property
    def element_bytes(self) -> int:
        """Of a number in memory."""
        return int(tvm.DataType(self.workload.dtype).bits) // 8

    @property
    def works_in_texels(self) -> bool:
        """Whether data and output may lie in images."""
        return bool(FAMILIES[self.family].works_in_texels(self.workload))

    @property
    def activations(self) -> set[str]:
        """Parameters that may lie in images: data, operands of the epilogue, output; all but the weight whose last axis holds lanes."""
        texels = (p for p in self.func.params if len(p.shape) > 2 and int(p.shape[-1]) == LANES)
        return {str(p.name) for p in texels if not p.same_as(self._weight)}

    def default_config(self, limits: Limits) -> Config:
        """The config that is tried first and used where nothing was tuned."""
        return self.starts(limits)[0]

    def starts(self, limits: Limits) -> list[Config]:
        """A decent config of each algorithm, the direct one first; and where there are tensor cores, one whose operands are staged."""
        space = self._direct_space(limits)
        direct = default_config(space, self.contraction(flat=True), self.contraction(flat=False), limits)
        staged = staged_config(space, self.contraction(flat=direct.get("pixels", "flat") == "flat"), direct, limits)
        found = [direct] if staged is None else [direct, staged]
        names = () if _has_fast_products(space) else self._others(limits)
        if not names:
            return found
        found = [Config({"algorithm": DIRECT, **config}) for config in found]
        for name in names:
            form = self.contraction(flat=False, config={"algorithm": name})
            found.append(Config({"algorithm": name, **default_config(self._winograd_space(name, limits), form, form, limits)}))
        return found

    @property
    def _reads(self) -> list[tirx.Buffer]:
        """The buffers that the operator reads, in order of first use: its data, its weight."""
        reads: list[tirx.Buffer] = []
        for region in self.block.reads:
            if not any(region.source.same_as(b) for b in reads):
                reads.append(region.source)
        return reads

    def contraction(self, flat: bool, config: Mapping[str, Any] | None = None) -> Contraction:
        """The operator as a contraction, its pixels in one row (flat) or row by row; under an algorithm with transforms, the one between them."""
        form = self._winograd(_algorithm(config or {}))
        if form is not None:
            shapes = {"transformed": form.transformed_shape, "weight": form.weight_shape}
            return form.contraction(*(te.placeholder(shape, self.workload.dtype, name) for name, shape in shapes.items()))
        tensors = [te.placeholder([int(d) for d in b.shape], str(b.dtype), b.name) for b in self._reads]
        family, is_zero_outside = FAMILIES[self.family], is_image(self._reads[0])
        return family.contraction(self.workload, *tensors, flat, is_zero_outside)  # type: ignore[no-any-return]

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        """Scheduled TIR for a config: a module with the one function `main`.

        Raises
        ------
        InvalidConfigError
            If TVM's scheduler refuses the config.
        """
        func = self.func
        for name, scope in self.image_scopes(config, limits).items():
            if name not in self.images:
                func = set_image(func, name, scope)
        return self._marked(func)._schedule(config)

    def _marked(self, func: tirx.PrimFunc) -> ContractionTemplate:
        template = ContractionTemplate.of(func)
        assert template is not None, "a mark on a parameter changes nothing that the template looks at"
        return template

    def _schedule(self, config: Config) -> tvm.IRModule:
        is_mma = tensor_core.is_mma(config)
        form = self._winograd(_algorithm(config))
        if form is None:
            contraction = self.contraction(flat=config.get("pixels", "flat") == "flat")
            if is_mma:
                contraction = tensor_core.regroup(contraction, config)
            func = replace_stage(self.func, self.block, build_stages(contraction, config))
        else:
            data = te.placeholder([int(d) for d in self._reads[0].shape], self.workload.dtype, "data")
            weight = te.placeholder(form.weight_shape, self.workload.dtype, "weight")
            stages = form.build(data, weight, config, is_zero_outside=is_image(self._reads[0]))
            func = replace_parameter(replace_stage(self.func, self.block, stages), self.names["weight"], shape=form.weight_shape)
        sch = s_tir.Schedule(as_module(func))
        try:
            output = _inline_epilogue(sch)
            if form is not None:
                return tvm.IRModule({"main": form.schedule(sch, output, config).mod["main"]})
            if isinstance(self.workload, Conv2dTranspose):
                sch, output = self._over_phases(sch, output, config)
            has_whole_texels = isinstance(self.workload, Conv2d) or self.workload.n % LANES == 0
            loops = self._output_loops(sch, output, config)
            schedule = tensor_core_schedule.schedule_stages if is_mma else schedule_stages
            schedule(sch, loops, list(contraction.reduce), config, has_whole_texels=has_whole_texels)
        except s_tir.ScheduleError as error:
            raise InvalidConfigError(f"{self.name}: TVM cannot schedule {config}: {str(error).strip().splitlines()[-1]}") from error
        return tvm.IRModule({"main": sch.mod["main"]})

    def _over_phases(self, sch: s_tir.Schedule, output: s_tir.schedule.SBlockRV, config: Config) -> tuple[s_tir.Schedule, s_tir.schedule.SBlockRV]:
        """The schedule with the output nest over (o, h, w, lane) of the phases of a transposed convolution."""
        work = self.workload
        assert isinstance(work, Conv2dTranspose)
        extents, pixel, _ = work.phases.pixels(config["pixels"] == "flat")

        def place(o: tirx.Expr, h: tirx.Expr, w: tirx.Expr, lane: tirx.Expr) -> tuple[list[tirx.Expr], list[tirx.Expr]]:
            n, row, column = pixel(h, w)
            channel, y, x = work.place_of(o, row, column)
            return [n, channel, y, x, lane], [tirx.all(v >= 0, v < extent) for v, extent in zip((y, x), work.out_hw, strict=True)]

        name, sums = str(sch.get(output).name_hint), "tile" if config["split_k"] == 1 else "acc"
        sch = s_tir.Schedule(as_module(renest(sch.mod["main"], name, sums, (*extents, LANES), place)))
        return sch, sch.get_sblock(name)

    def _output_loops(self, sch: s_tir.Schedule, output: s_tir.schedule.SBlockRV, config: Config) -> Sequence[s_tir.schedule.LoopRV]:
        """The output nest as loops (o, h, w, lane)."""
        if isinstance(self.workload, Dense):
            m, n = sch.get_loops(output)
            o, lane = sch.split(n, [None, 4])
            sch.reorder(o, m, lane)
            return o, sch.add_unit_loop(m), m, lane
        if isinstance(self.workload, BatchMatmul):
            loops = sch.get_loops(output)
            *batch, m, n = (loops[axis] for axis in self.workload.out_axes)
            o, lane = sch.split(n, [None, LANES])
            sch.reorder(o, *batch, m, lane)
            return o, sch.fuse(*batch) if batch else sch.add_unit_loop(m), m, lane
        if isinstance(self.workload, Conv2dTranspose):
            return sch.get_loops(output)
        oh, ow = self.workload.out_hw
        if config["pixels"] == "flat":
            sch.transform_block_layout(output, lambda n, o, y, x, lane: (o, (n * oh + y) * ow + x, lane))
            o, w, lane = sch.get_loops(output)
            return o, sch.add_unit_loop(w), w, lane
        sch.transform_block_layout(output, lambda n, o, y, x, lane: (o, n * oh + y, x, lane))
        o, h, w, lane = sch.get_loops(output)
        return o, h, w, lane


def _inline_epilogue(sch: s_tir.Schedule) -> s_tir.schedule.SBlockRV:
    """Inline everything between the contraction and the output; returns the output block."""
    root = sch.get_sblock("root")
    (output,) = sch.get_output_blocks(root)
    stages = {"patch", "texels", "kernel", "right", "part", "acc", "tile"} | STAGES
    for block in sch.get_child_blocks(root):
        if sch.get(block).name_hint not in stages and not sch.get(block).same_as(sch.get(output)):
            sch.compute_inline(block)
    return output


def _has_fast_products(space: Space) -> bool:
    """Whether tensor cores make so many products in a cycle that fewer of them are no gain: of halfs, not of floats, on an H200."""
    return tensor_core.MMA in space.knobs["multiply_add"]


def _algorithm(config: Mapping[str, Any]) -> str:
    return str(config.get("algorithm", DIRECT))
