"""OpenCL: any device with a driver, through Romou's runtime (`tvm_patches/opencl_runtime`)."""

from romou.devices.backends.opencl.backend import OpenCL

BACKEND = OpenCL()

__all__ = ["BACKEND", "OpenCL"]
