"""The numbers of default configs that were fitted to a device's compiler or hardware.

`romou.devices.presets` reads them from JSON files, which also state unit, source and the fitted observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Registers:
    """A model of register allocation in contractions, for register tiles that do not spill.

    max_fill: fraction of the registers that a default config may fill.
    addresses: registers for addresses and other scalars of a few loads.
    loaded_ahead, load_ahead: registers for loads that the compiler issues ahead, and for each load of a basic block.
    max_unrolled_operations: most products, loads and operations of counters in a loop that the compiler unrolls.
    max_unrolled_products: most multiply-adds of a work-item if the compiler unrolls the rows of a depthwise window.
    max_unrolled_constant_products: the same limit for any window if all columns are constants.
    max_unrolled_iterations: most iterations of a loop that the compiler unrolls.
    max_seen_operations, max_seen_iteration: operations of a loop, and of one of its iterations, beyond which the
        compiler was not seen to unroll it.
    max_unrolled_vectors: most operations of vectors in a loop that the compiler unrolls before it splits vectors.
    max_mixed_taps: most taps of a depthwise window with sums of mixed precision that is unrolled without spills, if the
        register file is dedicated.
    max_loads_ahead, min_rolled_loads: most loads of the sum of a single pixel that are issued ahead without spills, if
        the compiler unrolls the loop, and fewest loads of a loop that stays. None if it does not spill.
    min_rolled_texels: fewest texels of an fp32 sum without a window if the compiler keeps the loop rolled and loads
        one weight at a time. None if it always loads ahead.
    spilling_windows: windows at a stride whose default tile spills: "none", "cut" (a padded row ends inside a tile, or
        the window is unrolled), or "all". Products whose rows end inside a tile have narrower ones unless it is "none".
    most_strided_taps: most taps of a depthwise window at a stride, if four of its outputs fit into the registers. None
        for no limit.
    waiting: 32-bit registers of a work group that waits at barriers. None for no such limit.
    read_ahead: most registers for the sums, pointers, vectors and other loads of an iteration that reads odd rows in
        vectors.
    """

    max_fill: float
    addresses: int
    loaded_ahead: int
    load_ahead: float
    max_unrolled_operations: int
    max_unrolled_products: int
    max_unrolled_constant_products: int
    max_unrolled_iterations: int
    max_seen_operations: int
    max_seen_iteration: int
    max_unrolled_vectors: int
    max_mixed_taps: int
    max_loads_ahead: int | None = None
    min_rolled_loads: int | None = None
    min_rolled_texels: int | None = None
    spilling_windows: Literal["none", "cut", "all"] = "none"
    most_strided_taps: int | None = None
    waiting: int | None = None
    read_ahead: int = 1


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """The work-items that keep the device busy.

    min_busy_fraction: fraction of `Limits.busy_work_items` that is enough.
    most_of_warps: work-items of a core up to which a depthwise convolution on a large GPU has groups of one warp. With
        more, a group is two wide rows.
    min_register_rounds: rounds of work-items through the register files of all cores, or None for no such rule.
    """

    min_busy_fraction: float
    most_of_warps: int
    min_register_rounds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Algorithms:
    """Instruction slots of all cores, for the choice between direct sums, tensor cores and Winograd's algorithm.

    product: a multiply-add.
    long_fp16_product: a multiply-add if the sum over a texel's window is in fp16.
    transformed_number: a number that a transform reads or writes.
    launches: the launches of the two transforms.
    per_byte: slots while the memory delivers a byte, if the device's rates are not known: a ratio of its family.
    window_step: slots while a work-item waits for the loads of one step of a sum over a window.
    """

    product: float
    long_fp16_product: float
    transformed_number: float
    launches: float
    per_byte: float
    window_step: float


@dataclass(frozen=True, kw_only=True)
class StagedProducts:
    """Rules for default configs with local memory, on GPUs that are no phone's.

    groups_of_core: fewest work groups for each core.
    last_groups_of_core: fewest work groups for each core of the kernel with the smallest ones.
    most_padding: most outputs that are computed, padding included, over the outputs that are needed.
    """

    groups_of_core: float
    last_groups_of_core: float
    most_padding: float


@dataclass(frozen=True, kw_only=True)
class VectorTiles:
    """Default tiles of products on CPUs.

    registers: vector registers for the sums of a work-item and for the texels of the weight that it multiplies.
    group: most work-items of a group, along the pixels.
    multiply_add: how products are added, a choice of the knob `multiply_add`.
    """

    registers: int
    group: int
    multiply_add: Literal["mad", "fma", "plain"]


@dataclass(frozen=True, kw_only=True)
class TensorCores:
    """Cycles of a core whose warps multiply matrices.

    mma: a matrix instruction of fp16. TF32 takes twice as long.
    partition_mma: the same instruction on one of the core's four partitions.
    l1_line: a line of the first-level cache that a load touches.
    load_latency: the loads of a step, 16 deep.
    reduction: adding up a texel of a pixel, for each halving of the pieces of a sum.
    piece: a further piece of a sum.
    staged_latency: an iteration with staged operands waits for its other warps.
    copy_latency: the copies of an iteration, over the iterations that are ahead.
    local_line: a line of local memory that a load touches.
    copy: a copy of 8 or 16 bytes by each work-item of a warp.
    l2_bytes: bytes per cycle that the second-level cache delivers to a core.
    max_warps: warps in flight on a core.
    """

    mma: int
    partition_mma: int
    l1_line: int
    load_latency: int
    reduction: int
    piece: int
    staged_latency: int
    copy_latency: int
    local_line: int
    copy: int
    l2_bytes: int
    max_warps: int


@dataclass(frozen=True, kw_only=True)
class SplitProducts:
    """Products of floats that are split for tensor cores.

    product: a product, in instruction slots of all cores (`Algorithms`).
    pair: cycles of a partition for the products of 16 depths for two pixels and a texel of the weight.
    weight: cycles of a partition for splitting the texels of the weight for 16 depths.
    line: cycles of a partition for a line of the first-level cache that a load touches.
    load_latency: cycles for the loads of an iteration.
    reduction: cycles for adding up a texel of a pixel, for each halving of the pieces of a sum.
    not_hidden: share of the faster one of arithmetic and loads that the slower one does not hide.
    staged_step: cycles of one position of a window for 16 depths in local memory.
    """

    product: float
    pair: int
    weight: int
    line: int
    load_latency: int
    reduction: int
    not_hidden: float
    staged_step: int


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Numbers that choose the default tiles of attention, and one kernel or three. Most are cycles.

    partitions: parts of a core that issue at the same time.
    local_load: a load of local memory.
    staged_vector: loads of local memory that staging a vector takes as long as.
    barriers: the barriers of a tile of keys.
    memory_wait: a wait for memory.
    exponential: an exponential, in multiply-adds.
    groups: groups of the largest size that a core holds.
    warps: of a group on tensor cores.
    waiting_keys: keys in whose time a group on tensor cores waits for a tile.
    most_tiles: tiles of keys, for each core, that the groups of one kernel may take one after another.
    """

    partitions: int
    local_load: float
    staged_vector: int
    barriers: int
    memory_wait: int
    exponential: int
    groups: int
    warps: int
    waiting_keys: int
    most_tiles: int


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """Default configs of families that read their inputs once.

    row_vectors: vectors of a row that a work-item reduces, or None for the whole row.
    row_numbers: the same for rows that are read number by number.
    row_texels: the same for vectors that are read once, as for means.
    row_group: work-items of a group that reduces rows.
    has_reduction_trees: whether many work-items of a row combine their results in a tree.
    has_sub_group_sums: whether they do so by functions of sub-groups, if they are several and the device has these.
    pool_elements: most elements of neighbouring windows that a work-item computes.
    has_square_tiles: whether transposes are computed in squares of 4 x 4.
    """

    row_vectors: int | None
    row_numbers: int | None
    row_texels: int | None
    row_group: int
    has_reduction_trees: bool
    has_sub_group_sums: bool
    pool_elements: int
    has_square_tiles: bool


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """Default configs of products with quantized weights: for one row of activations, for few (2 to 8), and for more.

    unpack, few_unpack, tile_unpack: how a code becomes a number, a choice of the knob `unpack`. They are for one row of
        activations, few and more.
    table: where the numbers are looked up that codes stand for, a choice of `unpack`, too.
    rows, chunks: rows of the weight of a work-item, and chunks of each that it loads at a time, for one row.
    few_rows, few_data: rows of the weight and of the activations of a work-item, for few rows.
    pair_rows, few_pair_rows, tile_pair_rows: rows of the weight of a work-item if codes become pairs of fp16 values.
        They are for one row of activations, few and more. None: codes become floats.
    has_pair_tiles: whether several rows of activations have the tiles of `pairs_defaults.py`, if there are pairs.
    tile_rows, tile_data: the same for more rows.
    staged: products whose groups stage activations in local memory: "all", "tiles" (of more than few rows) or "none".
    group: work-items of a group.
    weight: memory of the packed weight, if an image can hold it.
    norm_of_item, norm_of_number: instructions that a normalization adds at most to each work-item of one row, and to a
        group for each number of the row.
    """

    unpack: Literal["shift", "mask", "bytes", "exponent"]
    few_unpack: Literal["shift", "mask", "bytes", "exponent"]
    tile_unpack: Literal["shift", "mask", "bytes", "exponent"]
    table: Literal["table", "local"]
    rows: int
    chunks: int
    few_rows: int
    few_data: int
    pair_rows: int | None
    few_pair_rows: int | None
    tile_pair_rows: int | None
    has_pair_tiles: bool
    tile_rows: int
    tile_data: int
    staged: Literal["all", "tiles", "none"]
    group: int
    weight: Literal["buffer", "image"]
    norm_of_item: int
    norm_of_number: int


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """Kernels of recurrent operators.

    group: work-items of a group that sums.
    is_sum_shared: whether several work-items share a sum.
    registers: registers of a work-item, if the device's number is not known.
    cells: units of a work-item, over all of its sequences, up to which vectors are longer than four.
    max_rows: sequences of a work-item.
    max_sum_threads: work-items that share a sum.
    min_summed: units that each of them sums up.
    max_products: products of a step in a work group, up to which the group runs all steps.
    waiting_group: work-items of a group that waits for others.
    max_weights: weights that such a work-item keeps in registers.
    """

    group: int
    is_sum_shared: bool
    registers: int
    cells: int
    max_rows: int
    max_sum_threads: int
    min_summed: int
    max_products: int
    waiting_group: int
    max_weights: int


@dataclass(frozen=True, kw_only=True)
class MixedSums:
    """Partial sums in fp16, added up in fp32.

    max_3d_window: most products of a window of three axes without spills.
    """

    max_3d_window: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Costs in the estimate of a kernel's time (`romou.compiler.operators.costs.estimate`).

    load_issue: multiply-adds that are issued while one load is.
    buffer_latency, image_latency: cycles until the first-level cache answers.
    loads_in_flight: loads of a work-item that wait at the same time.
    group_start: cycles to start and to end a work group.
    moved_buffer_fraction, moved_image_fraction: fraction of the bytes of a load that the first-level cache moves.
        Neighbours of a warp often read the same texel.
    moved_shared_fraction: fraction of the distinct bytes of a work group that the second-level cache moves.
    register_pool: registers of a core that work-items share, as a multiple of the device file's number.
    max_register_fill: fraction of a work-item's registers that it can fill at full speed.
    spill: share of the time that a kernel with more registers takes longer.
    spill_growth: the same for each multiple of that number of registers.
    max_iteration: multiply-adds of an iteration at full speed. Longer ones are unrolled in the kernel's text.
    iteration_growth: share of the time that a kernel takes longer for each doubling of that number.
    launch_us: microseconds of each launch, beside the kernel's own time.
    memory_share: bandwidth of the memory over the second-level cache's, if the device file has none of the memory.
    slowdown: a kernel's time without launch and memory over its estimate, for configs that the estimate picks.
    moved_number: instruction slots for each number that Winograd's transforms move, beside the memory's time.
    most_first_sums: most float4 sums of a work-item of a first config. 0 leaves first configs to hand rules.
    """

    load_issue: float
    buffer_latency: float
    image_latency: float
    loads_in_flight: float
    group_start: float
    moved_buffer_fraction: float
    moved_image_fraction: float
    moved_shared_fraction: float
    register_pool: float
    max_register_fill: float
    spill: float
    spill_growth: float
    max_iteration: float
    iteration_growth: float
    launch_us: float
    memory_share: float
    slowdown: float
    moved_number: float
    most_first_sums: int


@dataclass(frozen=True, kw_only=True)
class Products:
    """Sums of products: choices of their tiles, and where their default config has a weight.

    has_fine_tiles: whether a work-item may compute five or six pixels of a row.
    pixel_weight: memory of the fp16 weight of a single pixel: "preferred", where the device's images are if it reads
        them faster than buffers, or "buffer".
    """

    has_fine_tiles: bool
    pixel_weight: Literal["preferred", "buffer"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Fitted numbers for a kind of device.

    registers: None if default tiles are not fitted to the registers.
    vector_tiles: None for GPUs.
    """

    name: str
    registers: Registers | None = None
    vector_tiles: VectorTiles | None = None
    algorithms: Algorithms
    occupancy: Occupancy
    estimate: Estimate
    mixed_sums: MixedSums
    products: Products
    staged_products: StagedProducts
    tensor_cores: TensorCores
    split_products: SplitProducts
    streaming: Streaming
    attention: Attention
    recurrent: Recurrent
    quantized: Quantized
