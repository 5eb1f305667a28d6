"""The whole way from scheduled TIR to what the code generator sees, in order.

It is TVM's S-TIR pipeline less the passes for hardware that Romou does not target, less TVM's common-subexpression
elimination, and plus the passes of this folder. TVM's own simplifier inlines every variable that its elimination makes;
ours runs after the last simplification. Passes that only change how a kernel is written can be left out:
`PassContext(disabled_pass=["eliminate_addresses"])`.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import s_tir, tirx
from tvm.tirx import compilation_pipeline
from tvm_ffi.structural import structural_map

from romou.compiler.graph import (
    bound_indices,
    check_families,
    drop_empty,
    fuse_operators,
    join_pairs,
    pack_channels,
    place_images,
    share_buffers,
    split_weights,
)
from romou.compiler.passes.address_elimination import eliminate_addresses
from romou.compiler.passes.advancing_pointers import advance_pointers
from romou.compiler.passes.argument_checks import trust_arguments
from romou.compiler.passes.arithmetic import spell_arithmetic
from romou.compiler.passes.async_copies import copy_asynchronously
from romou.compiler.passes.code_generator import (
    compare_lanes,
    gather_bytes,
    keep_digits,
    name_register_reads,
    narrow_choices,
    number_truth_values,
    unroll_by_compiler,
)
from romou.compiler.passes.double_buffers import double_buffers
from romou.compiler.passes.early_return import return_early
from romou.compiler.passes.exact_division import divide_exactly
from romou.compiler.passes.flat_buffers import flatten_buffers
from romou.compiler.passes.fp16_storage import widen_fp16
from romou.compiler.passes.image_addressing import address_images, name_stored_texels
from romou.compiler.passes.nan import keep_nan
from romou.compiler.passes.narrow_integers import narrow_integers
from romou.compiler.passes.own_memory import name_own_memory
from romou.compiler.passes.shared_loads import share_loads
from romou.compiler.passes.short_functions import shorten_functions
from romou.compiler.passes.tensor_cores import use_tensor_cores
from romou.compiler.passes.vector_pointers import vectorize_pointers
from romou.compiler.stages import stage
from romou.devices.backends.dialect import Dialect, dialect_of

# ONNX as Relax -> fused functions, with their tensors in buffers or images.
GRAPH = (
    stage(drop_empty, "no kernel computes a tensor without elements"),
    stage(bound_indices, "indices of gathers are in range, so kernels do not check them"),
    stage(split_weights, "a device has a largest buffer", "target"),
    stage(pack_channels, "four channels are one texel and one vector", "rungs"),
    stage(fuse_operators, "a kernel computes an operator and its epilogue", "target", "rungs"),
    stage(check_families, "a family that fails is named with its nodes before anything depends on it"),
    stage(place_images, "reads of images pass through the texture cache", "target"),
)
# Run again each time when measurements change the pairs.
JOINED = (
    stage(join_pairs, "two operators in one kernel save a tensor between them", "pairs"),
    stage(share_buffers, "a concatenation or slice of channels needs no copy"),
)

NAME = "romou"
# The last pass of device functions that changes what they use of the device.
LAST_OF_DEVICE = "name_register_reads"


@tvm.transform.module_pass(opt_level=0)
def flatten_without_images(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Flatten buffers before vectors are made, where no image needs axes: TVM's own schedules for CUDA vectorize other
    axes than the last.
    """
    return mod if all(dialect.has_images for dialect in _dialects(mod)) else flatten_buffers(mod)


@tvm.transform.module_pass(opt_level=0)
def unroll_without_pragmas(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Write out loops that are left to the compiler, where its language (OpenCL C) has no way to ask it."""
    return mod if any(dialect.has_unroll_pragma for dialect in _dialects(mod)) else tirx.transform.UnrollLoop()(mod)


@tirx.transform.prim_func_pass(opt_level=0)
def keep_stored_types(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Let stores give what their buffers hold: TVM's narrowing of indices makes vectors of 32-bit constants of 64-bit
    ones, data too.
    """

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        lanes = int(tvm.DataType(str(access.value.ty)).lanes)
        dtype = (
            str(access.buffer.dtype)
            if lanes == 1 or "x" in str(access.buffer.dtype)
            else f"{access.buffer.dtype}x{lanes}"
        )
        if str(access.value.ty) == dtype or "int" not in dtype:
            return access
        return tirx.BufferStore(access.buffer, access.value.astype(dtype), access.indices)

    return func.with_body(structural_map(func.body, (tirx.BufferStore, store)))


def _dialects(mod: tvm.IRModule) -> list[Dialect]:
    return [dialect_of(func) for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]


def romou_tir_pipeline() -> tuple[
    tvm.transform.Pass, Callable[[], tvm.transform.Pass], Callable[[], tvm.transform.Pass]
]:
    """Passes for (the whole module, host functions, device functions), as `tvm.tirx.build(pipeline=...)` wants them."""
    lower = tvm.transform.Sequential(
        [
            # Blocks to loops
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerCrossThreadReduction(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.LiftThreadBinding(),
            s_tir.transform.CompactBufferAllocation(),
            s_tir.transform.LowerAutoCopy(),
            s_tir.transform.UnifyThreadBinding(),
            s_tir.transform.LowerMatchBuffer(),
            s_tir.transform.StmtSimplify(),
            s_tir.transform.AnnotateIrregularLoop(),
            s_tir.transform.InjectSoftwarePipeline(),
            s_tir.transform.LowerOpaqueBlock(),
            flatten_without_images,
            # Images are addressed by the tensor's own axes, in whole texels: after vectors are made, before buffers are
            # flattened.
            tirx.transform.VectorizeLoop(),
            number_truth_values,
            address_images,
            spell_arithmetic,
            divide_exactly,
            # Loops to straight-line code
            flatten_buffers,
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.NarrowDataType(32),
            keep_stored_types,
            s_tir.transform.LoopPartition(),
            s_tir.transform.InjectVirtualThread(),
            tirx.transform.StorageRewrite(),
            s_tir.transform.HoistIfThenElse(),
            tirx.transform.UnrollLoop(),
            s_tir.transform.RenormalizeSplitPattern(),
            tirx.transform.StmtSimplify(),
            tirx.transform.RemoveNoOp(),
            s_tir.transform.RewriteUnsafeSelect(),
            # Memory, barriers, and the split into host and device
            tirx.transform.FP8ComputeLegalize(),
            tirx.transform.VerifyMemory(),
            tirx.transform.AnnotateEntryFunc(),
            s_tir.transform.ThreadSync("shared"),
            s_tir.transform.ThreadSync("shared.dyn"),
            s_tir.transform.ThreadSync("warp"),
            name_own_memory,
            # What was summed up in one half of local memory needs no barrier before the other half is filled.
            double_buffers,
            s_tir.transform.LowerThreadAllreduce(),
            s_tir.transform.MergeSharedMemoryAllocations(),
            tirx.transform.SplitHostDevice(),
            tirx.transform.MakePackedAPI(),
            tirx.transform.FP8StorageLegalize(),
            tirx.transform.BF16StorageLegalize(),
        ]
    )
    host = tvm.transform.Sequential(
        [trust_arguments, tirx.transform.RemoveNoOp(), tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()]
    )
    device = tvm.transform.Sequential(
        [
            tirx.transform.LowerWarpMemory(),
            # While stores still are those of buffers
            return_early,
            # While accesses still are those of scalar buffers
            widen_fp16,
            copy_asynchronously,
            vectorize_pointers,
            # Behind LowerThreadAllreduce, which writes conditions.
            narrow_integers,
            tirx.transform.StmtSimplify(),
            use_tensor_cores,
            # Last of what rewrites integers: any simplification after it would undo it.
            eliminate_addresses,
            share_loads,
            name_stored_texels,
            name_register_reads,
            # Registers that loops fill are registers only when these are written out.
            tirx.transform.UnrollLoop(),
            # Behind it: these stay loops here.
            unroll_by_compiler,
            unroll_without_pragmas,
            advance_pointers,
            shorten_functions,
            # No estimate counts the comparison: what a maximum costs beside it is nothing beside a load.
            keep_nan,
            compare_lanes,
            gather_bytes,
            tirx.transform.LowerIntrin(),
            narrow_choices,
            keep_digits,
        ]
    )
    return lower, lambda: host, lambda: device


compilation_pipeline.register_tir_pipeline(NAME, romou_tir_pipeline)
