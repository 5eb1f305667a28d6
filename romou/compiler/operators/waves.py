"""The knob `wave`: the width of an Adreno's waves, and weights that a wave loads or copies once."""

from __future__ import annotations

from tvm import tirx

from romou.base.knob import Knob
from romou.base.space import Config
from romou.compiler.scheduling.rewrites import with_root
from romou.devices.backends.launch import COPIED, UNIFORM, WAVE_KIND, WAVE_MEMORY, WAVE_MEMORY_BYTES

DRIVER = "driver"
WAVE = Knob(
    name="wave",
    choices=(DRIVER, "half", "full", UNIFORM, COPIED),
    default=DRIVER,
    help=(
        "how an Adreno's compiler forms waves: as the driver likes, of half or the full width; or as it likes, with"
        " buffers marked at whose elements all work-items of a wave load the same, or with the weights of an iteration"
        " copied into the memory of a wave"
    ),
    devices="OpenCL with the target option -waves=search, until a phone says which is faster",
    exists_on=lambda limits: limits.searches_waves,
    absent=DRIVER,
)


def with_wave(func: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
    """Return a scheduled function whose kernels have the waves of `config`."""
    wave = config.get(WAVE.name, DRIVER)
    if wave == DRIVER:
        return func
    return (_with_wave_memory(func) if wave == COPIED else func).with_attr(WAVE_KIND, wave)


def _with_wave_memory(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function of one kernel with a workspace, which the kernel takes as the memory of waves.

    for local_x in thread_binding(8): body      ->      for local_x in thread_binding(8): WAVE_MEMORY(workspace); body
    """
    root, memory = func.body.block, tirx.decl_buffer((WAVE_MEMORY_BYTES // 4,), "float32", name="wave_memory")

    def in_work_item(stmt: tirx.Stmt) -> tirx.Stmt:
        if not isinstance(stmt, tirx.For) or stmt.thread_binding is None:
            return tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("int32", WAVE_MEMORY, memory.data)), stmt])
        loop = stmt.loop_var, stmt.min, stmt.extent, stmt.kind
        return tirx.For(*loop, in_work_item(stmt.body), stmt.thread_binding, stmt.annotations)

    # TVM allocates a buffer where all of its uses are. The last one, outside of the kernel, is removed as a no-op.
    body = tirx.SeqStmt([in_work_item(root.body), tirx.Evaluate(tirx.isnullptr(memory.data))])
    return with_root(func, body, [*root.alloc_buffers, memory])
