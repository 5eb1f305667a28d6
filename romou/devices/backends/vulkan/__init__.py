"""Vulkan: any GPU with a driver of version 1.1 or newer. Kernels are GLSL compute shaders, compiled by glslang."""

from romou.devices.backends.vulkan.backend import Vulkan

BACKEND = Vulkan()

__all__ = ["BACKEND", "Vulkan"]
