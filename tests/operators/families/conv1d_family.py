"""Convolution of rows in NWC, between the transposes that exporters of NWC models write.

data (n, w, c)      weight (kernel, c, ceil(oc / 4), 4)      output (n, ow, oc)

The channels of an output pixel are contiguous, so four of them are a texel of the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.families.bases.contraction import ContractionFamily
from romou.compiler.operators.family import Case, Graph
from romou.compiler.operators.workload import Workload
from romou.compiler.scheduling.loops import Block, Loop
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import Shape, is_constant, static_shape


@dataclass(frozen=True, kw_only=True)
class Conv1d(Workload):
    """A convolution of stride 1 without padding. `out_channels` is a multiple of four."""

    batch: int
    in_channels: int
    width: int
    out_channels: int
    kernel: int
    dtype: str = "float32"

    @property
    def out_width(self) -> int:
        return self.width - self.kernel + 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.out_width * self.out_channels * self.in_channels * self.kernel

    @property
    def name(self) -> str:
        return f"{self.batch}x{self.width}x{self.in_channels}_{self.out_channels}_{self.kernel}"


class Conv1dFamily(ContractionFamily[Conv1d]):
    name = "conv1d_nwc"
    workload = Conv1d
    operators = frozenset({"relax.permute_dims"})
    typical = (Conv1d(batch=2, in_channels=6, width=19, out_channels=12, kernel=3),)

    def match(self, call: relax.Call) -> Conv1d | None:
        """Return the workload of the convolution between the transposes, which the importer gives in NCW."""
        is_plain = all(int(n) == 1 for n in (*call.attrs.strides, *call.attrs.dilation, call.attrs.groups)) and not any(
            call.attrs.padding
        )
        if call.attrs.data_layout != "NCW" or not is_plain or not is_constant(call.args[1]):
            return None
        (n, c, width), (out, _, kernel) = (static_shape(arg) for arg in call.args)
        return Conv1d(batch=n, in_channels=c, width=width, out_channels=out, kernel=kernel) if out % 4 == 0 else None

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Return the plain definition of three calls. A family of single calls needs only `match`.

        permute_dims(conv1d(permute_dims(x), w))      ->      conv1d_nwc(x, w)
        """
        conv = graph.bound.get(call.args[0])
        before = graph.bound.get(conv.args[0]) if op_name(conv) == "relax.nn.conv1d" else None
        if op_name(before) != "relax.permute_dims" or any(
            [int(axis) for axis in swap.attrs.axes or ()] != [0, 2, 1] for swap in (call, before)
        ):
            return None
        work = self.match(conv)
        return (
            None
            if work is None
            else self.emit(graph, work, graph.plain_expr(before.args[0]), conv.args[1].value.numpy())
        )

    def operands(self, w: Conv1d) -> Mapping[str, Shape]:
        return {"data": (w.batch, w.width, w.in_channels), "weight": (w.kernel, w.in_channels, w.out_channels // 4, 4)}

    def bias(self, w: Conv1d) -> tuple[Shape, Callable[..., tuple[tirx.Expr | int, ...]]]:
        return (w.out_channels,), lambda _n, _x, o: (o,)

    def pack_weight(self, w: Conv1d, weight: np.ndarray) -> np.ndarray:
        """Pack a weight: OIW (out, c, kernel) -> (kernel, c, ceil(out / 4), 4)."""
        return np.ascontiguousarray(weight.transpose(2, 1, 0)).reshape(w.kernel, w.in_channels, -1, 4)

    def contraction(
        self, w: Conv1d, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        return Contraction(
            inputs=[data, weight],
            extents=(w.out_channels // 4, w.batch, w.out_width),
            reduce={"c": w.in_channels, "k": w.kernel, "one": 1},
            lhs=lambda _o, n, x, _lane, c, k, _one: data[n, x + k, c],
            rhs=lambda o, lane, c, k, _one: weight[k, c, o, lane],
            output=lambda n, x, o: (o // 4, n, x, o % 4),
            output_shape=(w.batch, w.out_width, w.out_channels),
            lhs_neighbours="reduction",
        )

    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: Conv1d, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        n, x, o = sch.get_loops(output)
        texel, lane = sch.split(o, [None, 4])
        sch.reorder(texel, n, x, lane)
        return sch, (texel, n, x, lane)

    def case(self, w: Conv1d) -> Case:
        def build(x: relax.Expr, weight: relax.Expr) -> relax.Expr:
            return relax.op.permute_dims(relax.op.nn.conv1d(relax.op.permute_dims(x, [0, 2, 1]), weight), [0, 2, 1])

        def compute(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
            windows = np.lib.stride_tricks.sliding_window_view(x, w.kernel, axis=1)
            return np.einsum("nxck,ock->nxo", windows, weight)

        return Case(
            name=w.name,
            inputs=[(w.batch, w.width, w.in_channels)],
            weights=[(w.out_channels, w.in_channels, w.kernel)],
            build=build,
            compute=compute,
        )


FAMILY = Conv1dFamily()
