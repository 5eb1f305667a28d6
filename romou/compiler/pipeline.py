"""The compiler on one screen: all passes, in order, each with its reason. A pass that is not listed here does not run.

    ONNX    a model in ONNX       ->  operators that have kernels, constants folded, precisions chosen
    GRAPH   a model in Relax      ->  fused functions, their tensors in buffers or images
    MODULE  fused functions       ->  scheduled kernels, and calls of them with planned memory
    KERNEL  one scheduled kernel  ->  a function for the host (HOST) and one for the device (DEVICE), then source text

`ROMOU_DUMP=all` or `romou inspect MODEL --stages` write the module after every stage, of ONNX after those that change
the model.

KERNEL is TVM's S-TIR pipeline with the passes of `romou/compiler/passes` and without passes for other hardware. TVM's
common-subexpression elimination is left out, because TVM's simplifier inlines every variable that it makes. Romou's
elimination runs after the last simplification. Passes that only change how a kernel is written can be disabled:
`PassContext(disabled_pass=["eliminate_addresses"])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import onnx
import tvm
from tvm import relax, s_tir, tirx
from tvm.tirx import compilation_pipeline

from romou.compiler.dumps import current_dumps
from romou.compiler.frontend.axes import with_vectors_of_axes
from romou.compiler.frontend.control_flow import unroll
from romou.compiler.frontend.declared import settle_declared
from romou.compiler.frontend.dequantized import with_integer_products, with_quantized_constants
from romou.compiler.frontend.doubles import without_doubles
from romou.compiler.frontend.expand import expand_functions, inline_functions
from romou.compiler.frontend.fold import by_depth, fold, with_own_outputs, without_constants
from romou.compiler.frontend.fp16 import with_fp16, with_fp16_borders, without_batch_norms
from romou.compiler.frontend.infer import text_of
from romou.compiler.frontend.merged_products import merge_products
from romou.compiler.frontend.onnx_import import fix_shapes
from romou.compiler.frontend.qlinear import with_standard_operators
from romou.compiler.frontend.quantized import with_packed_weights, with_packed_weights_of_few_rows
from romou.compiler.frontend.scaled_sums import scale_factors
from romou.compiler.frontend.scikit_learn import with_standard_definitions
from romou.compiler.frontend.summed_products import sum_products
from romou.compiler.frontend.wide_nodes import widened
from romou.compiler.graph import (
    bound_indices,
    check_families,
    drop_empty,
    join_chains,
    pack_channels,
    place_images,
    share_buffers,
    split_weights,
)
from romou.compiler.graph.flatten_patches import flatten_patches
from romou.compiler.graph.fuse import (
    group_operators,
    legalize_operators,
    merge_views,
    name_parameters_apart,
    shorten_names,
)
from romou.compiler.graph.integer_products import rewrite_integer_products
from romou.compiler.graph.join_chains import join_terms
from romou.compiler.graph.memory.entries import mark_entries
from romou.compiler.graph.memory.images import copy_images, place_weights, store_weights
from romou.compiler.graph.memory.in_place import update_in_place
from romou.compiler.graph.memory.storage import plan_storage
from romou.compiler.graph.memory.workspaces import plan_workspaces
from romou.compiler.graph.origins import mark_rungs, name_origins, part_groups
from romou.compiler.graph.pad_rows import pad_rows
from romou.compiler.graph.sink_reshapes import sink_reshapes
from romou.compiler.graph.split_concats import split_concats
from romou.compiler.graph.split_groups import split_groups, split_untaken
from romou.compiler.passes.address_elimination import eliminate_addresses
from romou.compiler.passes.advancing_pointers import advance_pointers
from romou.compiler.passes.argument_checks import trust_arguments
from romou.compiler.passes.arithmetic import spell_arithmetic
from romou.compiler.passes.async_copies import copy_asynchronously
from romou.compiler.passes.code_generator import (
    compare_lanes,
    gather_bytes,
    keep_digits,
    name_pairs,
    name_register_reads,
    number_truth_values,
    unroll_by_compiler,
    unroll_without_pragmas,
    wrap_short_integers,
)
from romou.compiler.passes.division import divide_exactly, divide_positive
from romou.compiler.passes.double_buffers import double_buffers
from romou.compiler.passes.early_return import return_early
from romou.compiler.passes.flat_buffers import flatten_buffers, flatten_without_images
from romou.compiler.passes.float_differences import keep_differences
from romou.compiler.passes.fp16_storage import widen_fp16
from romou.compiler.passes.image_addressing import address_images, name_stored_texels
from romou.compiler.passes.keep_marked_loops import keep_marked_loops
from romou.compiler.passes.kernel_attributes import keep_attributes
from romou.compiler.passes.nan import keep_nan
from romou.compiler.passes.narrow_integers import keep_stored_types, narrow_integers
from romou.compiler.passes.odd_sums import read_odd_sums
from romou.compiler.passes.own_memory import name_own_memory
from romou.compiler.passes.shared_loads import share_loads
from romou.compiler.passes.short_functions import shorten_functions
from romou.compiler.passes.tensor_cores import use_tensor_cores
from romou.compiler.passes.vector_pointers import vectorize_pointers
from romou.compiler.passes.whole_buffers import allocate_whole_buffers
from romou.compiler.stages import Context, OnnxContext, Stage, listed, part, schedule_kernels, stage

if TYPE_CHECKING:
    from romou.devices.targets import Target

NAME = "romou"
# The last pass of DEVICE that changes the registers, the memory or the work group of a kernel.
LAST_OF_DEVICE = "name_register_reads"

ONNX = listed(
    "onnx",
    stage(inline_functions, "kernels do not call functions of the model"),
    stage(with_vectors_of_axes, "exporters write axes as scalars, which no converter reads"),
    stage(fix_shapes, "a kernel is made for sizes", "shapes"),
    stage(with_fp16_borders, "the caller may pass and get fp16", "has_fp16_borders"),
    # Before constants are folded, which makes floats of quantized weights
    stage(with_standard_definitions, "scikit-learn's operators are a few standard ones"),
    stage(with_standard_operators, "onnxruntime's quantized operators are dequantize, operator, quantize"),
    stage(with_quantized_constants, "training aware of quantization exports weights in floats"),
    stage(with_packed_weights, "blocked weights stay packed on the device"),
    stage(with_integer_products, "products of dequantized bytes are sums of integers", "is_as_given"),
    stage(with_packed_weights_of_few_rows, "a product of few rows is bound by the bytes of its weight"),
    # Constants
    stage(with_own_outputs, "a wrong declared shape gives way to the computed one"),
    stage(settle_declared, "declared shapes decide inputs such as the shape of a Reshape", "settled"),
    stage(expand_functions, "ONNX defines operators without a converter by others"),
    stage(fold, "kernels need static shapes, and no kernel computes a constant"),
    stage(unroll, "kernels have no control flow"),
    stage(by_depth, "launches of one depth do not wait for each other"),
    stage(without_constants, "the next rules look for weights only"),
    stage(without_batch_norms, "fp16 loses a small variance, and Relax folds each constant by a kernel"),
    # Precision
    stage(without_doubles, "phones have no float64, which exporters make of Python's numbers", "narrowed"),
    stage(widened, "statistics, angles and masks overflow or lose all digits in fp16"),
    stage(scale_factors, "an fp16 sum overflows before it is scaled", "sum_type"),
    stage(sum_products, "a column of ones is a copy, and keeps products from whole texels"),
    stage(merge_products, "queries, keys and values are one product, which reads its input once"),
    stage(with_fp16, "storage of half the size", "is_as_given", "fp32_nodes"),
)

GRAPH = listed(
    "graph",
    stage(drop_empty, "no kernel computes a tensor without elements"),
    stage(bound_indices, "indices of gathers are in range, so kernels do not check them"),
    stage(
        rewrite_integer_products,
        "weights of 8 bits stay packed; fp32 computes other sums of integers exactly",
        "target",
        "has_sizes",
    ),
    stage(flatten_patches, "a picture's patches that do not overlap are rows of a product"),
    stage(split_weights, "a buffer of the device has a largest size", "target"),
    stage(pad_rows, "phones read and write whole vectors of scores", "target", "has_sizes"),
    stage(pack_channels, "four channels are one texel and one vector", "rungs"),
    # Fusion: Relax operators -> TIR functions of a contraction and its epilogue
    stage(split_concats, "a kernel binds a limited number of buffers", "max_buffers"),
    stage(sink_reshapes, "a reshape between a contraction and its epilogue keeps them apart"),
    stage(legalize_operators, "kernels are TIR", "target", "has_sizes"),
    stage(relax.transform.FoldConstant(), "weights are packed and converted at compile time", keeps="operators"),
    stage(group_operators, "an epilogue in the same kernel saves a tensor in memory"),
    stage(part_groups, "a group without a working kernel is computed operator by operator", "operators", "rungs"),
    stage(split_untaken, "an operator family takes each part of a group that none takes as a whole"),
    stage(split_groups, "a kernel binds a limited number of buffers", "max_buffers"),
    stage(name_origins, "a kernel that fails is traced back to ONNX nodes", "operators"),
    stage(relax.transform.FuseTIR(), "a group becomes one TIR function"),
    stage(name_parameters_apart, "images are chosen by name, and both parameters of x * x have one"),
    stage(relax.transform.DeadCodeElimination(), "operators that are now in a group are unused"),
    stage(merge_views, "reshapes of reshapes are one view, which needs no kernel"),
    stage(shorten_names, "compilers put a kernel's name into file names"),
    stage(mark_rungs, "no family takes a function whose kernel failed", "rungs"),
    # Memory of activations
    stage(check_families, "a family that fails is named with its ONNX nodes"),
    stage(join_terms, "a norm squares its elements itself", "rungs"),
    stage(place_images, "reads of images go through the texture cache", "target"),
    # Run again whenever measurements decide which chains are joined
    stage(join_chains, "several operators in one kernel save the tensors between them", "chains"),
    stage(share_buffers, "a concatenation or slice of channels needs no copy"),
    after=ONNX,
)

MODULE = listed(
    "module",
    stage(schedule_kernels, "a function gets the kernel of its config, or one of TVM's schedules", "kernels"),
    stage(store_weights, "weights are converted once, at compile time", "stored_weights"),
    stage(place_weights, "weights in images are copied there once, at load", "image_scopes", "target"),
    stage(plan_workspaces, "workspaces share memory with tensors of the graph"),
    stage(relax.transform.RewriteDataflowReshape(), "a reshape is a view, not a kernel"),
    # Behind it: a copy has the pattern of a reshape
    stage(copy_images, "a kernel by itself may read and write images", "image_scopes", "target"),
    stage(mark_entries, "only kernels that read inputs of the model check their arguments"),
    # Calls with memory for their results
    stage(relax.transform.ToNonDataflow(), "calls write into memory from here on"),
    stage(relax.transform.RemovePurityChecking(), "such calls are not pure"),
    stage(update_in_place, "a step of a decoder writes a row of its cache, and does not copy the others"),
    stage(relax.transform.CallTIRRewrite(), "a call writes into an allocated tensor"),
    stage(plan_storage, "tensors that are not live together share memory, the largest first", "target"),
    stage(relax.transform.StaticPlanBlockMemory(), "TVM plans graphs with branches"),
    # Instructions of TVM's virtual machine
    stage(relax.transform.LowerAllocTensor(), "a tensor is an offset in its storage"),
    stage(relax.transform.KillAfterLastUse(), "memory is given back as early as possible"),
    stage(relax.transform.LowerRuntimeBuiltin(), "the virtual machine has functions for allocations"),
    stage(relax.transform.ComputePrimValue(), "the host computes scalars"),
    stage(relax.transform.VMShapeLower(), "the virtual machine checks shapes of inputs"),
    stage(relax.transform.AttachGlobalSymbol(), "functions of a library have names"),
    after=GRAPH,
)

KERNEL = listed(
    "",
    stage(keep_differences, "TVM's simplifier cancels floats as if they were exact"),
    # Blocks to loops
    stage(s_tir.transform.CanonicalizeLoop(), "loops start at 0 with step 1"),
    stage(s_tir.transform.LowerCrossThreadReduction(), "reductions across work-items become calls"),
    stage(s_tir.transform.LowerInitBlock(), "the initial value of a reduction is a statement"),
    stage(s_tir.transform.PlanAndUpdateBufferAllocationLocation(), "buffers are allocated where they are used"),
    stage(s_tir.transform.ConvertBlocksToOpaque(), "block variables become loop variables"),
    stage(s_tir.transform.LiftThreadBinding(), "loops of work-items are outside of all others"),
    stage(s_tir.transform.CompactBufferAllocation(), "a staged buffer holds only one tile"),
    stage(allocate_whole_buffers, "memory of a kernel has a constant size, even if the kernel takes a size"),
    stage(s_tir.transform.LowerAutoCopy(), "copies to local memory are spread over a work group"),
    stage(s_tir.transform.UnifyThreadBinding(), "one variable for each axis of work-items"),
    stage(s_tir.transform.LowerMatchBuffer(), "a view of a buffer is the buffer with moved indices"),
    stage(s_tir.transform.StmtSimplify(), "the next passes match simple indices"),
    stage(s_tir.transform.AnnotateIrregularLoop(), "loops with a break are left as they are"),
    stage(s_tir.transform.InjectSoftwarePipeline(), "the next tile is loaded while one is computed"),
    stage(s_tir.transform.LowerOpaqueBlock(), "only loops, allocations and statements are left"),
    # Images are addressed by the tensor's own axes, in whole texels: after vectors are made, before buffers are flat
    stage(flatten_without_images, "TVM's schedules for CUDA vectorize other axes than the last"),
    stage(tirx.transform.VectorizeLoop(), "four lanes are one vector"),
    stage(number_truth_values, "TVM stores vectors of truth values as wider integers"),
    stage(address_images, "reads and stores of images become read_image and write_image"),
    # Before scalars lose their broadcasts: a division that is a call, as Vulkan's, takes vectors.
    stage(divide_exactly, "OpenCL's division may be wrong in the last bits"),
    stage(spell_arithmetic, "a product with one lane of a vector is a broadcast"),
    # Loops to straight-line code
    stage(flatten_buffers, "memory has one dimension"),
    stage(tirx.transform.BF16ComputeLegalize(), "devices compute bf16 as fp32"),
    stage(tirx.transform.NarrowDataType(32), "GPUs compute 64-bit indices slowly"),
    stage(keep_stored_types, "TVM narrows 64-bit data together with indices"),
    stage(s_tir.transform.LoopPartition(), "iterations at a border are a loop of their own"),
    stage(s_tir.transform.InjectVirtualThread(), "virtual threads become loops"),
    stage(tirx.transform.StorageRewrite(), "buffers that are not live together share memory"),
    stage(s_tir.transform.HoistIfThenElse(), "a condition that a loop does not change is outside of it"),
    stage(tirx.transform.UnrollLoop(), "tiles are in registers only if their loops are unrolled"),
    stage(s_tir.transform.RenormalizeSplitPattern(), "quotients by products become nested quotients"),
    stage(tirx.transform.StmtSimplify(), "unrolled indices are constants"),
    stage(tirx.transform.RemoveNoOp(), "empty statements go"),
    stage(s_tir.transform.RewriteUnsafeSelect(), "a select that guards a load is a branch"),
    # Memory, barriers, and the split into host and device
    stage(tirx.transform.FP8ComputeLegalize(), "devices compute fp8 as fp32"),
    stage(tirx.transform.VerifyMemory(), "a host that reads device memory is an error here"),
    stage(tirx.transform.AnnotateEntryFunc(), "a library has one entry"),
    stage(s_tir.transform.ThreadSync("shared"), "barriers for local memory"),
    stage(s_tir.transform.ThreadSync("shared.dyn"), "barriers for dynamic local memory"),
    stage(s_tir.transform.ThreadSync("warp"), "barriers for a warp"),
    stage(name_own_memory, "a work-item's private memory is not merged with local memory"),
    stage(double_buffers, "a second half of local memory saves a barrier in each iteration"),
    stage(s_tir.transform.LowerThreadAllreduce(), "reductions across work-items become loops over local memory"),
    stage(s_tir.transform.MergeSharedMemoryAllocations(), "one allocation of dynamic local memory"),
    stage(tirx.transform.SplitHostDevice(), "from here on there are a host function and kernels"),
    stage(keep_attributes, "the text of a kernel names its dimensions, and calls the functions of its config"),
    stage(tirx.transform.MakePackedAPI(), "the host function reads packed arguments"),
    stage(tirx.transform.FP8StorageLegalize(), "fp8 is stored as bytes"),
    stage(tirx.transform.BF16StorageLegalize(), "bf16 is stored as 16-bit integers"),
)

HOST = listed(
    "host",
    stage(trust_arguments, "checks of arguments are most of a model's host code"),
    stage(tirx.transform.RemoveNoOp(), "empty statements go"),
    stage(tirx.transform.LowerTVMBuiltin(), "launches become calls of the runtime"),
    stage(tirx.transform.LowerIntrin(), "LLVM's intrinsics"),
    after=KERNEL,
)

DEVICE = listed(
    "",
    stage(tirx.transform.LowerWarpMemory(), "memory of a warp becomes registers and shuffles"),
    # While stores are stores of buffers
    stage(return_early, "work-items without an output skip the kernel"),
    # While accesses are accesses of scalar buffers
    stage(widen_fp16, "fp16 is storage: kernels compute in fp32"),
    stage(copy_asynchronously, "loads of the next tile bypass the registers"),
    stage(vectorize_pointers, "one vector access instead of a scalar access for each lane"),
    # Behind LowerThreadAllreduce, which writes conditions
    stage(narrow_integers, "GPUs compute 64-bit integers slowly"),
    stage(tirx.transform.StmtSimplify(), "the last simplification"),
    stage(divide_positive, "a quotient by a size at run time is no floor of a negative number"),
    stage(use_tensor_cores, "marked loops become matrix instructions"),
    # Last of the passes that rewrite integers: any simplification after it would undo it
    stage(eliminate_addresses, "an address is computed once, outside of the loops that do not change it"),
    stage(share_loads, "equal loads in one iteration are one load"),
    stage(name_stored_texels, "TVM writes a stored texel's value once for each lane"),
    stage(name_register_reads, "TVM's CUDA code generator confuses vectors of equal text"),
    stage(tirx.transform.UnrollLoop(), "registers that loops fill are registers only if the loops are unrolled"),
    # Behind UnrollLoop: these loops stay
    stage(unroll_by_compiler, "the device's compiler unrolls long loops"),
    stage(unroll_without_pragmas, "OpenCL C has no pragma for the device's compiler"),
    stage(read_odd_sums, "an iteration of an odd sum reads vectors, not single numbers"),
    stage(advance_pointers, "a pointer that advances replaces an address in each iteration"),
    stage(keep_marked_loops, "phones' compilers unroll short loops and load ahead for all iterations"),
    stage(shorten_functions, "compilers need long for long straight-line code"),
    # No estimate counts the comparison: beside a load, a maximum costs nothing
    stage(keep_nan, "a maximum with NaN is NaN"),
    stage(compare_lanes, "OpenCL's vectors of truth values are -1"),
    stage(gather_bytes, "TVM packs bytes that are not adjacent into an integer"),
    stage(name_pairs, "TVM writes pairs of fp16 numbers as C++"),
    stage(tirx.transform.LowerIntrin(), "functions of the device's language"),
    stage(wrap_short_integers, "C computes with short integers in int, and select of OpenCL takes none"),
    stage(keep_digits, "TVM prints seven digits of a constant"),
    after=HOST,
)

# The text of a kernel, which the backend writes last.
SOURCE = DEVICE[-1].followed_by("source")
STAGE_NAMES = frozenset(each.name for each in (*ONNX, *GRAPH, *MODULE, *KERNEL, *HOST, *DEVICE, SOURCE))

Pass: TypeAlias = "Callable[[tvm.IRModule], tvm.IRModule]"


def run(stages: Iterable[Stage], mod: tvm.IRModule, context: Context | None = None, kernel: str = "") -> tvm.IRModule:
    """Run the stages one after the other, with dumps if these are wanted. kernel: name of the function in `mod`."""
    dumps = current_dumps(STAGE_NAMES)
    for each in stages:
        mod = each(mod, context)
        if each.keeps and context is not None:
            context = replace(context, **{each.keeps: mod})
        if dumps is not None and dumps.stages:  # a text takes longer than most passes
            dumps.write(each, mod.script(), kernel)
    return mod


def rewrite(stages: Iterable[Stage], model: onnx.ModelProto, context: OnnxContext) -> onnx.ModelProto:
    """Run stages of ONNX one after the other, with dumps of those that change the model if these are wanted."""
    dumps = current_dumps(STAGE_NAMES)
    for each in stages:
        before, model = model, each.run(model, *(getattr(context, name) for name in each.reads))
        if dumps is not None and dumps.stages and (text := text_of(model)) != text_of(before):
            dumps.write(each, text)
    return model


def dump_source(kernel: str, source: Callable[[], str]) -> None:
    """Dump the source of a function's kernels, if that is wanted."""
    if (dumps := current_dumps(STAGE_NAMES)) is not None:
        dumps.write(SOURCE, source(), kernel)


def fuse_operators(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Run the stages of GRAPH from Relax operators to fused TIR functions."""
    return run(part(GRAPH, "split_concats", "mark_rungs"), mod, Context(target=target))


def trusting(finish_host: Pass) -> Pass:
    """Return passes of host functions, after which these trust their arguments.

    TVM's own pipeline checks the arguments of all functions, whose shapes are those of the largest sizes.
    """
    return lambda mod: trust_arguments(finish_host(mod))


def romou_tir_pipeline() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    """Return passes for (the whole module, host functions, device functions), as `tvm.tirx.build` reads them."""
    name = ""

    def lower(mod: tvm.IRModule) -> tvm.IRModule:
        nonlocal name
        name = str(mod.get_global_vars()[0].name_hint)
        return run(KERNEL, mod, kernel=name)

    return lower, lambda: partial(run, HOST, kernel=name), lambda: partial(run, DEVICE, kernel=name)


compilation_pipeline.register_tir_pipeline(NAME, romou_tir_pipeline)
