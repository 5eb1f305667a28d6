"""Program that hands kernels to Mesa's OpenCL driver, run by the emulated arm64 Python of the set-up script.

    driver.py OPTIONS FILE...

It builds each file. Mesa then compiles the kernels and prints their statistics, among this program's own lines:

    @romou begin FILE                           the lines of this file follow
    @romou kernel NAME PRIVATE LOCAL            bytes of private memory of a work-item, of local memory of a work group
    @romou failed TEXT                          the file could not be built
    @romou end

It imports little: every module takes its time under emulation.
"""

from __future__ import annotations

import ctypes as c
import os
import sys
from typing import Any

CL_DEVICE_TYPE_ALL = 0xFFFFFFFF
CL_PROGRAM_BUILD_LOG = 0x1183
CL_KERNEL_FUNCTION_NAME = 0x1190
CL_KERNEL_LOCAL_MEM_SIZE, CL_KERNEL_PRIVATE_MEM_SIZE = 0x11B2, 0x11B4
_MAKERS = ("clCreateContext", "clCreateProgramWithSource")


class OpenCLError(Exception):
    """A call that did not return CL_SUCCESS."""


def call(cl: c.CDLL, name: str, *arguments: Any) -> c.c_void_p:
    """Call an OpenCL function. Functions in `_MAKERS` return an object, and get the error argument here."""
    function = getattr(cl, name)
    if name in _MAKERS:
        function.restype = c.c_void_p
        error = c.c_int(0)
        made = c.c_void_p(function(*arguments, c.byref(error)))
        status = error.value
    else:
        made = c.c_void_p()
        status = function(*arguments)
    if status:
        raise OpenCLError(f"{name} returned {status}")
    return made


def text_of(cl: c.CDLL, name: str, *arguments: Any) -> str:
    """Return the result of a clGet...Info function as text."""
    size = c.c_size_t(0)
    call(cl, name, *arguments, c.c_size_t(0), None, c.byref(size))
    buffer = c.create_string_buffer(size.value + 1)
    call(cl, name, *arguments, size, buffer, None)
    return buffer.value.decode(errors="replace")


def bytes_of(cl: c.CDLL, kernel: c.c_void_p, device: c.c_void_p, what: int) -> int:
    """Return a size from clGetKernelWorkGroupInfo."""
    value = c.c_ulong(0)
    call(cl, "clGetKernelWorkGroupInfo", kernel, device, what, c.c_size_t(c.sizeof(value)), c.byref(value), None)
    return value.value


def say(text: str) -> None:
    """Print a line unbuffered, so that it is in order with Mesa's output."""
    os.write(1, f"@romou {text}\n".encode())


def build(cl: c.CDLL, device: c.c_void_p, path: str, options: str) -> None:
    """Build one file and report its kernels."""
    with open(path, "rb") as file:
        source = c.c_char_p(file.read())
    context = call(cl, "clCreateContext", None, 1, c.byref(device), None, None)
    program = call(cl, "clCreateProgramWithSource", context, 1, c.byref(source), None)
    try:
        call(cl, "clBuildProgram", program, 1, c.byref(device), options.encode(), None, None)
    except OpenCLError:
        raise OpenCLError(text_of(cl, "clGetProgramBuildInfo", program, device, CL_PROGRAM_BUILD_LOG)) from None
    count = c.c_uint(0)
    call(cl, "clCreateKernelsInProgram", program, 0, None, c.byref(count))
    kernels = (c.c_void_p * count.value)()
    call(cl, "clCreateKernelsInProgram", program, count, kernels, None)
    for kernel in map(c.c_void_p, kernels):
        sizes = [bytes_of(cl, kernel, device, what) for what in (CL_KERNEL_PRIVATE_MEM_SIZE, CL_KERNEL_LOCAL_MEM_SIZE)]
        say(f"kernel {text_of(cl, 'clGetKernelInfo', kernel, CL_KERNEL_FUNCTION_NAME)} {sizes[0]} {sizes[1]}")


def main(options: str, *paths: str) -> None:
    """Build every file, also after a failure."""
    cl = c.CDLL("libOpenCL.so.1")
    platform, device = c.c_void_p(), c.c_void_p()
    call(cl, "clGetPlatformIDs", 1, c.byref(platform), None)
    call(cl, "clGetDeviceIDs", platform, c.c_ulong(CL_DEVICE_TYPE_ALL), 1, c.byref(device), None)
    for path in paths:
        say(f"begin {path}")
        try:
            build(cl, device, path, options)
        except OpenCLError as error:
            say(f"failed {error}")
        say("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
    if os.environ.get("ROMOU_FILL_CACHE"):
        # A thread still writes the shader cache, and an exit would stop it.
        import time

        time.sleep(1)
    # The driver has no real device, and crashes in its exit handlers.
    os._exit(0)
