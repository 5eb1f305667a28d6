"""CUDA: NVIDIA GPUs, with kernels compiled by NVRTC, which needs no GPU."""

from romou.devices.backends.cuda.backend import Cuda

BACKEND = Cuda()

__all__ = ["BACKEND", "Cuda"]
