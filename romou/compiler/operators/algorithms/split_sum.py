"""A long sum in pieces, one for a work group each. A second kernel adds them up in a fixed order.

    data, weight -> partial (pieces, output texels, pixels, 4)      a contraction for each piece, scheduled as any other
    partial      -> total -> output                                 a work-item for each texel, and the epilogue

The workspace between the kernels is a tensor of the model's memory plan (`romou/compiler/graph/memory/workspaces.py`).
There are no atomic additions, so results are the same each time. The gradient of a filter needs pieces: it sums over
all pixels of a batch, and has far fewer outputs than a large GPU has work-items.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tvm import s_tir, te, tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.contraction.schedule import schedule_stages
from romou.compiler.operators.contraction.stages import Stage, contract
from romou.compiler.scheduling.loops import Loop, loops_below
from romou.compiler.tir.primitives import LANES

# Choice of the knob `algorithm` -> number of pieces.
PIECES = {f"pieces{count}": count for count in (4, 8, 16, 32, 64, 128)}
PARTIAL, TOTAL = "partial", "total"
STAGES = frozenset({PARTIAL, TOTAL})
_GROUP, _FLOAT_BYTES = 64, 4


def bytes_between(form: Contraction) -> int:
    """Return the bytes written and read between the kernels."""
    return 2 * _FLOAT_BYTES * math.prod(form.extents) * LANES


def build_pieces(form: Contraction, whole: Contraction, config: Config) -> tirx.PrimFunc:
    """Return all stages as a function.

    form: a contraction for each row h, which is a piece.
    whole: the same sum in one piece, with the place of results in the output.
    """
    o, count, w = form.extents
    rows = dataclasses.replace(
        form, output=lambda piece, o, x, lane: (o, piece, x, lane), output_shape=(count, o, w, LANES)
    )
    partial, piece = contract(rows, config, name=PARTIAL), te.reduce_axis((0, count), "piece")
    total = te.compute(
        (o, 1, w, LANES), lambda o, _, x, lane: te.sum(partial[piece, o, x, lane], axis=piece), name=TOTAL
    )
    output = te.compute(whole.output_shape, lambda *i: total[whole.output(*i)], name=Stage.CROP)
    return te.create_prim_func([*form.inputs, output])


def schedule_pieces(sch: s_tir.Schedule, loops: Sequence[Loop], reduce_names: Sequence[str], config: Config) -> None:
    """Schedule both kernels. loops: (o, h, w, lane) of the output."""
    piece, o, w, lane = sch.get_loops(sch.get_sblock(PARTIAL))
    sch.reorder(o, piece, w, lane)
    schedule_stages(sch, [o, piece, w, lane], reduce_names, config)

    *texels, lane = loops
    group, item = sch.split(sch.fuse(*texels), [None, _GROUP])
    sch.bind(group, "blockIdx.x")
    sch.bind(item, "threadIdx.x")
    total = sch.get_sblock(TOTAL)
    sch.set_scope(total, 0, "local")
    sch.compute_at(total, item, preserve_unit_loops=True)
    *_, own_lane, own_piece = loops_below(sch, total, item)
    sch.reorder(own_piece, own_lane)
    sch.vectorize(own_lane)
    init = sch.decompose_reduction(total, own_piece)
    sch.vectorize(sch.get_loops(init)[-1])
    sch.unroll(lane)
