"""From a fused function to its knob space, and from a config to its schedule; the same for every family of contractions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import tvm
from romou.schedules import FAMILIES
from romou.schedules.base import Template
from romou.schedules.contraction import Contraction, Limits, build_stages, declare_knobs, default_config, schedule_stages
from romou.schedules.splice import as_module, find_blocks, replace_stage
from romou.schedules.workload import Conv2d, Dense
from tvm import s_tir, te, tirx

from romou.errors import InvalidConfigError
from romou.primitives import FREE_IMAGES, LANES, image_extents, is_image, set_image
from romou.space import Config, Space

Workload: TypeAlias = Conv2d | Dense


def template_of(func: tirx.PrimFunc) -> Template | None:
    """The template that fits a fused function; None where none does."""
    others = (family.template_of(func) for family in FAMILIES.values() if hasattr(family, "template_of"))
    return ContractionTemplate.of(func) or next((template for template in others if template is not None), None)


class ContractionTemplate(Template):
    """That of convolutions and dense layers."""

    def __init__(self, func: tirx.PrimFunc, block: s_tir.SBlock):
        self.func = func
        self.block = block
        self.family = str(block.annotations["romou.family"])
        kind = Dense if self.family == "dense" else Conv2d
        self.workload: Workload = kind.from_json(str(block.annotations["romou.workload"]))

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
        space = Space()
        for name in ("data", "weight", "output"):
            space.define_knob(name, self._places(name, limits))
        if isinstance(self.workload, Conv2d):
            space.define_knob("pixels", ["flat", "rows"] if self.workload.out_hw[0] > 1 else ["flat"])
            if self.workload.out_hw[0] > 1:
                # An image is addressed by row and column: pixels in one row would need a division for each texel.
                space.add_constraint(lambda config: (config["data"] == "buffer") | (config["pixels"] == "rows"))
        # Halfs are summed as halfs only where that is faster; the sum of a long reduction loses digits, which the check of a trial sees.
        sums = ["float32", "float16"] if self.workload.dtype == "float16" and limits.has_half_arithmetic else ["float32"]
        space.define_knob("accumulate", sums)
        # The flat form has the longer rows: every tile that makes sense row by row makes sense there too.
        declare_knobs(space, self.contraction(flat=True), self.contraction(flat=False), limits)
        if self.images:
            space.add_constraint(lambda config: config["vector_width"] == LANES)
        return space

    def _places(self, name: str, limits: Limits) -> list[str]:
        """Where the operator's data, weight or output may lie: activations where the graph put them, unless it leaves them free."""
        buffer = {"data": self._reads[0], "weight": self._weight, "output": self.func.params[-1]}[name]
        if is_image(buffer):
            return ["image"]
        is_free = name == "weight" or (self.func.attrs is not None and FREE_IMAGES in self.func.attrs)
        return ["buffer", "image"] if is_free and self._scope(name, limits) is not None else ["buffer"]

    def _scope(self, name: str, limits: Limits) -> str | None:
        """The texture scope under which data, weight or output fits into an image; None where none does, or images are not wanted."""
        return next((scope for scope, reason in self._scopes(name, limits) if reason is None), None)

    def kept_in_buffers(self, limits: Limits) -> dict[str, str]:
        """Data, weight or output that the schedule could read from an image but that fits into none -> why."""
        found = {}
        for name in ("data", "weight", "output"):
            reasons = [reason for _, reason in self._scopes(name, limits)]
            if reasons and all(reasons):
                found[name] = str(reasons[-1])
        return found

    def _scopes(self, name: str, limits: Limits) -> Iterator[tuple[str, str | None]]:
        """Texture scopes that hold the lanes of data, weight or output as texels, each with what is too large for it."""
        buffer = {"data": self._reads[0], "weight": self._weight, "output": self.func.params[-1]}[name]
        shape, most = [int(d) for d in buffer.shape], limits.max_image
        has_texels = self.contraction(flat=True).vector if name == "weight" else self.works_in_texels
        if most is None or shape[-1] != LANES or not has_texels:
            return
        for scope in ("global.texture-weight", "global.texture") if name == "weight" else ("global.texture",):
            sides = zip(("width", "height", "layers"), image_extents(shape, scope), most, strict=True)
            yield scope, next((f"its {side} would be {extent} texels, the device allows {limit}" for side, extent, limit in sides if extent > limit), None)

    @property
    def _weight(self) -> tirx.Buffer:
        """The operator's second input."""
        return self._reads[1]

    def image_scopes(self, config: Config, limits: Limits) -> dict[str, str]:
        """Parameter name -> memory scope, for the parameters that lie in images under `config`."""
        chosen = {name: self._scope(role, limits) for role, name in self.names.items() if config[role] == "image"}
        return {**{n: s for n, s in chosen.items() if s is not None}, **self.images}

    @property
    def names(self) -> dict[str, str]:
        """Of the parameters that are the operator's "data" and "weight" and the function's "output"."""
        buffers = {"data": self._reads[0], "weight": self._weight, "output": self.func.params[-1]}
        return {role: str(buffer.name) for role, buffer in buffers.items()}

    def weight_scope(self, limits: Limits) -> str | None:
        """The texture scope of the weight where it lies in an image; None where it cannot."""
        return self._scope("weight", limits)

    @property
    def element_bytes(self) -> int:
        """Of a number in memory."""
        return int(tvm.DataType(self.workload.dtype).bits) // 8

    @property
    def operands(self) -> dict[str, int]:
        """Data and weight; what the epilogue reads is no part of the reduction's traffic."""
        return {self.names[role]: self.element_bytes for role in ("data", "weight")}

    @property
    def outputs(self) -> int:
        """Numbers that the operator gives, whole texels counted."""
        return math.prod(self.contraction(flat=True).extents) * LANES

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
        return default_config(self.space(limits), self.contraction(flat=True), self.contraction(flat=False), limits)

    @property
    def _reads(self) -> list[tirx.Buffer]:
        """The buffers that the operator reads, in order of first use: its data, its weight."""
        reads: list[tirx.Buffer] = []
        for region in self.block.reads:
            if not any(region.source.same_as(b) for b in reads):
                reads.append(region.source)
        return reads

    def contraction(self, flat: bool) -> Contraction:
        """The operator as a contraction, its pixels in one row (flat) or row by row."""
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
        contraction = self.contraction(flat=config.get("pixels", "flat") == "flat")
        func = replace_stage(self.func, self.block, build_stages(contraction, config))
        sch = s_tir.Schedule(as_module(func))
        try:
            output = _inline_epilogue(sch)
            has_whole_texels = not isinstance(self.workload, Dense) or self.workload.n % LANES == 0
            loops = self._output_loops(sch, output, config)
            schedule_stages(sch, loops, list(contraction.reduce), config, has_whole_texels=has_whole_texels)
        except s_tir.ScheduleError as error:
            raise InvalidConfigError(f"{self.name}: TVM cannot schedule {config}: {str(error).strip().splitlines()[-1]}") from error
        return tvm.IRModule({"main": sch.mod["main"]})

    def _output_loops(self, sch: s_tir.Schedule, output: s_tir.schedule.SBlockRV, config: Config) -> Sequence[s_tir.schedule.LoopRV]:
        """The output nest as loops (o, h, w, lane)."""
        if isinstance(self.workload, Dense):
            m, n = sch.get_loops(output)
            o, lane = sch.split(n, [None, 4])
            sch.reorder(o, m, lane)
            return o, sch.add_unit_loop(m), m, lane
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
    stages = {"patch", "kernel", "part", "acc"}
    for block in sch.get_child_blocks(root):
        if sch.get(block).name_hint not in stages and not sch.get(block).same_as(sch.get(output)):
            sch.compute_inline(block)
    return output
