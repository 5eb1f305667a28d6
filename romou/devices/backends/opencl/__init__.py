"""OpenCL: any device with a driver for it; the runtime is Romou's own (`tvm_patches/opencl_runtime`)."""

from romou.devices.backends.opencl.backend import OpenCL

BACKEND = OpenCL()

__all__ = ["BACKEND", "OpenCL"]
