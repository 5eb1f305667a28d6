"""The knob `tensor_cores`, of kernels that are written out."""

from romou.base.knob import Knob

NO_TENSOR_CORES, MMA, WGMMA = "none", "mma", "wgmma"
TENSOR_CORES = Knob(
    name="tensor_cores",
    choices=(NO_TENSOR_CORES, MMA, WGMMA),
    default=NO_TENSOR_CORES,
    help=(
        "how tensor cores multiply: each warp (mma), or four warps together (wgmma). With quantized weights, four"
        " work-items then share their rows of the weight, and each of them holds its rows of activations. In attention,"
        " a work-item holds every eighth query of its warp, and two keys of every eight"
    ),
    devices="mma: CUDA from sm_80 on, and NVIDIA's OpenCL; wgmma: sm_90a",
    exists_on=lambda limits: limits.has_tensor_cores,
    absent=NO_TENSOR_CORES,
)
# Rows and columns of the result of an instruction, and depths (PTX ISA, "Matrix Fragments for mma.m16n8k16").
ROWS, COLUMNS, DEPTHS = 16, 8, 16
WARP = 32
# Multiply-adds of a work-item in an instruction.
PRODUCTS = ROWS * COLUMNS * DEPTHS // WARP
# fp16 numbers of 16 bytes, which a work-item copies or loads at a time.
UNIT = 8
