"""Convolutions with the batch innermost (CHWN), BEAST's layout, as a family of contractions, and a race of layouts.

filters (ceil(ic / step), kh, kw, oc, step)     images (ic, ih, iw, n)      output (oc, oh, ow, n)

As in BEAST's kernel, a group computes some images and some filters of one output pixel. A texel is four neighbouring
images, so loads and stores are vectors, and a window leaves the image for all work-items or for none.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import tvm
from tvm import relax, s_tir, te, tirx

import romou.compiler.operators.families as package
from romou.base.errors import RomouError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.families.bases.contraction import ContractionFamily
from romou.compiler.operators.family import Case
from romou.compiler.operators.workload import Conv2d, Expr
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.compiler.tir.expressions import Shape
from romou.compiler.tir.primitives import LANES
from romou.devices.targets import Target
from romou.tuner.pruning import Rules, prune_each

PACKED, INNERMOST = "NCHW4c", "CHWN"
# Configs whose neighbours are tried, configs that are timed again for the choice of the best, and draws for each trial.
_PARENTS, _FINALISTS, _TRIES = 4, 3, 50
# Seconds of a timed repetition.
_REPETITION_S = 0.05
# A config is not timed again if its first launch takes longer than the best by this factor, or, with its compilation by
# the driver, by this factor and these seconds.
_FAR, _COMPILATION_S = 2.0, 2.0


class BatchInnermost(ContractionFamily[Conv2d]):
    """Convolutions with one group, batches of whole texels and the batch innermost. Graphs have none of them."""

    name = "conv2d_chwn"
    workload = Conv2d
    has_constant_weight = False
    stores_rows = True
    operators = frozenset()
    typical = ()

    def is_mine(self, w: Conv2d) -> bool:
        return False

    def match(self, call: relax.Call) -> Conv2d | None:
        return None

    def operands(self, w: Conv2d) -> Mapping[str, Shape]:
        step = _step(w)
        return {
            "filters": (w.in_channels // step, *w.kernel, w.out_channels, step),
            "images": (w.in_channels, *w.in_hw, w.batch),
        }

    def define(self, w: Conv2d, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        r = [te.reduce_axis((0, extent), name) for name, extent in _reduction(w).items()]

        def value(o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, n: tirx.Expr) -> tirx.Expr:
            ic, ky, kx, step = r
            return te.sum(data[ic, ky, kx, o, step] * _image(w, weight, y, x, n, *r), axis=r)

        return te.compute((w.out_channels, *w.out_hw, w.batch), value, name=self.name, attrs=w.block_attrs(self.name))

    def contraction(
        self, w: Conv2d, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        oh, ow = w.out_hw
        return Contraction(
            inputs=[data, weight],
            extents=(w.batch // LANES, oh * ow, w.out_channels),
            reduce=_reduction(w),
            lhs=lambda _o, _h, oc, _lane, ic, ky, kx, step: data[ic, ky, kx, oc, step],
            rhs=lambda o, lane, *r: _image(w, weight, r[-1] // ow, r[-1] % ow, o * LANES + lane, *r[:-1]),
            output=lambda oc, y, x, n: (n // LANES, y * ow + x, oc, n % LANES),
            output_shape=(w.out_channels, oh, ow, w.batch),
            is_batched=True,
            is_padded=False,
        )

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: Conv2d, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return the output (oc, y, x, n) as loops (o, h, w, lane)."""
        oc, y, x, n = sch.get_loops(output)
        o, lane = sch.split(n, [None, LANES])
        sch.reorder(o, y, x, oc, lane)
        return sch, (o, sch.fuse(y, x), oc, lane)

    def bias(self, w: Conv2d) -> tuple[Shape, Callable[..., tuple[tirx.Expr | int, ...]]]:
        return (w.out_channels,), lambda o, _y, _x, _n: (o,)

    def case(self, w: Conv2d) -> Case:
        raise NotImplementedError("no graph has this layout")


FAMILY = BatchInnermost()


def _step(w: Conv2d) -> int:
    return next(step for step in (4, 2, 1) if w.in_channels % step == 0)


def _reduction(w: Conv2d) -> dict[str, int]:
    step = _step(w)
    return {"ic": w.in_channels // step, "ky": w.kernel[0], "kx": w.kernel[1], "icstep": step}


def _image(
    w: Conv2d, images: te.Tensor, oy: Expr, ox: Expr, n: Expr, ic: Expr, ky: Expr, kx: Expr, step: Expr
) -> tirx.Expr:
    return w.under_window((oy, ox), (ky, kx), lambda y, x: images[ic * _step(w) + step, y, x, n])


@contextlib.contextmanager
def both_layouts() -> Iterator[None]:
    """Let tasks of this family have a template."""
    every = (*package.families(), FAMILY)
    with mock.patch.object(package, "families", return_value=every):
        package.template_of.cache_clear()
        yield
    package.template_of.cache_clear()


def tasks_of(work: Conv2d) -> dict[str, TunableTask]:
    """Return layout -> the convolution without an epilogue, as a task."""
    task = TunableTask.of(FAMILY.function(work, has_epilogue=False))
    assert task is not None, "the family is registered"
    return {PACKED: task_of(work, has_epilogue=False), INNERMOST: task}


def arrays_of(work: Conv2d, images: np.ndarray, filters: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Return layout -> arrays for the parameters of its task, the last one for the output.

    images: (n, ic, ih, iw). filters: (oc, ic, kh, kw).
    """
    conv2d, step, texels = package.family_of(work), _step(work), -(-work.in_channels // LANES)
    full = np.zeros((work.batch, texels * LANES, *work.in_hw), images.dtype)
    full[:, : work.in_channels] = images
    packed = full.reshape(work.batch, texels, LANES, *work.in_hw).transpose(0, 1, 3, 4, 2)
    parts = filters.reshape(work.out_channels, -1, step, *work.kernel).transpose(1, 3, 4, 0, 2)
    out = (work.out_channels, *work.out_hw, work.batch)
    sides = {
        PACKED: [packed, conv2d.pack_weight(work, filters), np.full(work.output_shape, np.nan, images.dtype)],
        INNERMOST: [parts, images.transpose(1, 2, 3, 0), np.full(out, np.nan, images.dtype)],
    }
    return {layout: [np.ascontiguousarray(array) for array in arrays] for layout, arrays in sides.items()}


def unpacked(work: Conv2d, layout: str, output: np.ndarray) -> np.ndarray:
    """Return an output of a layout as (n, oc, oh, ow)."""
    if layout == INNERMOST:
        return output.transpose(3, 0, 1, 2)
    return output.transpose(0, 1, 4, 2, 3).reshape(work.batch, -1, *work.out_hw)[:, : work.out_channels]


@dataclass
class Side:
    """One layout in the race: its task on a device, with its tensors, and the seconds of each config."""

    task: TunableTask
    target: Target
    device: tvm.runtime.Device
    tensors: list[tvm.runtime.Tensor]
    seconds: dict[Config, float]

    def time(self, config: Config, best: float = math.inf) -> Callable[[], float]:
        """Return a function that times a config: the mean seconds of a few launches.

        It repeats nothing if the config is far from `best` seconds.
        """
        module = build_task(self.task, config, self.target)
        start = time.perf_counter()
        module["main"](*self.tensors)
        self.device.sync()
        first = time.perf_counter() - start
        if first > _FAR * best + _COMPILATION_S:
            return lambda: first
        once = float(module.time_evaluator("main", self.device, number=1, repeat=1)(*self.tensors).results[0])
        if once > _FAR * best:
            return lambda: once
        number = max(1, math.ceil(_REPETITION_S / once))
        timed = module.time_evaluator("main", self.device, number=number, repeat=1)
        return lambda: float(timed(*self.tensors).results[0])

    def search(self, trials: int, stop_at: float, seed: int) -> Config:
        """Time the default config, then random ones, then neighbours of the best ones. Return the fastest."""
        rng, target = np.random.default_rng(seed), self.target
        (space,) = prune_each(self.task.template, self.task.space(target), target.spec, target.limits, (Rules(),))
        where = {"algorithm": "direct"} if "algorithm" in space.knobs else {}
        default = self.task.direct_config(target)
        drawn = [default, *space.sample(rng, trials // 2, exclude={default.key}, where=where)]
        for _ in range(_TRIES * trials):
            if len(self.seconds) >= trials or (self.seconds and time.monotonic() > stop_at):
                break
            if drawn:
                config = drawn.pop(0)
            else:
                parents = sorted(self.seconds, key=lambda c: self.seconds[c])[:_PARENTS]
                (config,) = space.mutated([parents[int(rng.integers(len(parents)))]], rng)
                if config in self.seconds or config.get("algorithm", "direct") != "direct":
                    continue
            best, self.seconds[config] = min(self.seconds.values(), default=math.inf), math.inf
            with contextlib.suppress(RomouError, RuntimeError):  # a config that cannot be built is none
                self.seconds[config] = self.time(config, best)()
        finalists = sorted(self.seconds, key=lambda c: self.seconds[c])[:_FINALISTS]
        again = {c: min(timer() for _ in range(3)) for c in finalists for timer in [self.time(c)]}
        return min(again, key=lambda c: again[c])


def race(
    work: Conv2d, target: Target, device: tvm.runtime.Device, trials: int, seconds: float, pairs: int, seed: int = 0
) -> tuple[dict[str, Side], dict[str, Config], list[tuple[float, float]], float]:
    """Search both layouts, direct sums only, then time the fastest of each alternately.

    Return the sides, their fastest configs, pairs of (packed, innermost) seconds, and the difference of the two outputs
    relative to the largest number.
    """
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((work.batch, work.in_channels, *work.in_hw), dtype=np.float32)
    filters = rng.standard_normal((work.out_channels, work.in_channels, *work.kernel), dtype=np.float32)
    arrays = arrays_of(work, images, filters)
    with both_layouts():
        sides = {
            layout: Side(task, target, device, [tvm.runtime.tensor(a, device) for a in arrays[layout]], {})
            for layout, task in tasks_of(work).items()
        }
        best = {layout: side.search(trials, time.monotonic() + seconds, seed) for layout, side in sides.items()}
        packed, innermost = (sides[layout].time(best[layout]) for layout in (PACKED, INNERMOST))
    timed = [(packed(), innermost()) for _ in range(pairs)]
    first, second = (unpacked(work, layout, sides[layout].tensors[-1].numpy()) for layout in (PACKED, INNERMOST))
    return sides, best, timed, float(np.abs(first - second).max() / np.abs(first).max())
