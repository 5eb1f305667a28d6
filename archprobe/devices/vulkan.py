"""Vulkan devices, through the PyPI package `vulkan`.

The same kernel texts run as compute shaders (`glsl.py`), timed by timestamps on the queue.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np

from archprobe.devices.base import Device, DeviceKind, Facts, ListedDevice, defines
from archprobe.devices.glsl import Shader, compile_kernel
from archprobe.errors import DeviceError, KernelError

_FORMATS = {"int": "i", "uint": "I", "float": "f"}
_HALF = "VK_KHR_shader_float16_int8"
_STAGED_BYTES = 1 << 24
# Vulkan 1.1, which Romou's runtime needs too.
_OLDEST = 1 << 22 | 1 << 12


class _Buffer:
    """Memory that a shader reads and writes. It is freed with the object."""

    def __init__(self, device: VulkanDevice, size: int, *, is_for_host: bool = False) -> None:
        vk = device.vk
        self.size = -(-max(size, 4) // 4) * 4
        usage = (
            vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        )
        self.handle = vk.vkCreateBuffer(device.handle, vk.VkBufferCreateInfo(size=self.size, usage=usage), None)
        needs = vk.vkGetBufferMemoryRequirements(device.handle, self.handle)
        host = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        kind = device.memory_type(needs.memoryTypeBits, host if is_for_host else vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
        self.memory = vk.vkAllocateMemory(
            device.handle, vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=kind), None
        )
        vk.vkBindBufferMemory(device.handle, self.handle, self.memory, 0)
        self._device = device

    def __del__(self) -> None:
        if hasattr(self, "_device"):
            self._device.vk.vkDestroyBuffer(self._device.handle, self.handle, None)
            self._device.vk.vkFreeMemory(self._device.handle, self.memory, None)


class _Image:
    """An image of 16-byte texels that a shader reads or writes, in the layout for both. It is freed with the object."""

    def __init__(self, device: VulkanDevice, texels: np.ndarray) -> None:
        vk = device.vk
        *rows, width, _ = texels.shape
        extent = vk.VkExtent3D(width=width, height=rows[0] if rows else 1, depth=1)
        kind, seen = (
            (vk.VK_IMAGE_TYPE_2D, vk.VK_IMAGE_VIEW_TYPE_2D) if rows else (vk.VK_IMAGE_TYPE_1D, vk.VK_IMAGE_VIEW_TYPE_1D)
        )
        form = vk.VK_FORMAT_R32G32B32A32_SFLOAT if texels.dtype == np.float32 else vk.VK_FORMAT_R32G32B32A32_SINT
        usage = vk.VK_IMAGE_USAGE_SAMPLED_BIT | vk.VK_IMAGE_USAGE_STORAGE_BIT | vk.VK_IMAGE_USAGE_TRANSFER_DST_BIT
        how = {
            "arrayLayers": 1,
            "mipLevels": 1,
            "samples": vk.VK_SAMPLE_COUNT_1_BIT,
            "tiling": vk.VK_IMAGE_TILING_OPTIMAL,
            "usage": usage,
        }
        self.handle = vk.vkCreateImage(
            device.handle, vk.VkImageCreateInfo(imageType=kind, format=form, extent=extent, **how), None
        )
        self.view = self.memory = None
        self._device = device
        needs = vk.vkGetImageMemoryRequirements(device.handle, self.handle)
        memory_type = device.memory_type(needs.memoryTypeBits, vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
        self.memory = vk.vkAllocateMemory(
            device.handle, vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=memory_type), None
        )
        vk.vkBindImageMemory(device.handle, self.handle, self.memory, 0)
        self.range = vk.VkImageSubresourceRange(aspectMask=vk.VK_IMAGE_ASPECT_COLOR_BIT, levelCount=1, layerCount=1)
        view = vk.VkImageViewCreateInfo(image=self.handle, viewType=seen, format=form, subresourceRange=self.range)
        self.view = vk.vkCreateImageView(device.handle, view, None)
        self.extent = extent

    def __del__(self) -> None:
        if hasattr(self, "_device"):
            vk, handle = self._device.vk, self._device.handle
            if self.view is not None:
                vk.vkDestroyImageView(handle, self.view, None)
            vk.vkDestroyImage(handle, self.handle, None)
            if self.memory is not None:
                vk.vkFreeMemory(handle, self.memory, None)


class _Kernel:
    """A shader with its layouts, and one pipeline for each work-group size.

    The size is a compile-time constant of a shader.
    """

    def __init__(self, device: VulkanDevice, shader: Shader) -> None:
        vk, self.name, self.types = device.vk, shader.name, shader.types
        self.device = device
        self.module = vk.vkCreateShaderModule(
            device.handle, vk.VkShaderModuleCreateInfo(codeSize=len(shader.spirv), pCode=shader.spirv), None
        )
        stage = vk.VK_SHADER_STAGE_COMPUTE_BIT
        descriptor_types = {
            "m": vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            "r": vk.VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE,
            "w": vk.VK_DESCRIPTOR_TYPE_STORAGE_IMAGE,
        }
        self._kinds = [descriptor_types[t] for t in self.types if t in descriptor_types]
        bindings = [
            vk.VkDescriptorSetLayoutBinding(binding=i, descriptorType=kind, descriptorCount=1, stageFlags=stage)
            for i, kind in enumerate(self._kinds)
        ]
        self.set_layout = vk.vkCreateDescriptorSetLayout(
            device.handle, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None
        )
        size = 4 * (len(self.types) - len(self._kinds))
        ranges = [vk.VkPushConstantRange(stageFlags=stage, offset=0, size=size)] if size else []
        layout = vk.VkPipelineLayoutCreateInfo(pSetLayouts=[self.set_layout], pPushConstantRanges=ranges)
        self.layout = vk.vkCreatePipelineLayout(device.handle, layout, None)
        sizes = [
            vk.VkDescriptorPoolSize(type=kind, descriptorCount=max(1, self._kinds.count(kind)))
            for kind in descriptor_types.values()
        ]
        pool = vk.vkCreateDescriptorPool(
            device.handle, vk.VkDescriptorPoolCreateInfo(maxSets=1, pPoolSizes=sizes), None
        )
        self.set = vk.vkAllocateDescriptorSets(
            device.handle, vk.VkDescriptorSetAllocateInfo(descriptorPool=pool, pSetLayouts=[self.set_layout])
        )[0]
        self.bound: list[_Buffer | _Image] = []
        self._pipelines: dict[int, Any] = {}

    def pipeline(self, local_size: int) -> Any:
        if local_size not in self._pipelines:
            vk = self.device.vk
            data = vk.ffi.new("uint32_t[1]", [local_size])
            entry = vk.VkSpecializationMapEntry(constantID=1, offset=0, size=4)
            special = vk.VkSpecializationInfo(pMapEntries=[entry], dataSize=4, pData=data)
            stage = vk.VkPipelineShaderStageCreateInfo(
                stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=self.module, pName="main", pSpecializationInfo=special
            )
            info = vk.VkComputePipelineCreateInfo(stage=stage, layout=self.layout)
            self._pipelines[local_size] = vk.vkCreateComputePipelines(self.device.handle, None, 1, [info], None)[0]
        return self._pipelines[local_size]

    def bind(self, bound: list[_Buffer | _Image]) -> None:
        """Bind the shader to buffers and images. No launch may be in progress."""
        vk = self.device.vk
        if [id(b) for b in bound] == [id(b) for b in self.bound]:
            return
        self.device.finish()
        for i, (resource, kind) in enumerate(zip(bound, self._kinds, strict=True)):
            if isinstance(resource, _Image):
                info = {
                    "pImageInfo": [
                        vk.VkDescriptorImageInfo(imageView=resource.view, imageLayout=vk.VK_IMAGE_LAYOUT_GENERAL)
                    ]
                }
            else:
                info = {
                    "pBufferInfo": [vk.VkDescriptorBufferInfo(buffer=resource.handle, offset=0, range=resource.size)]
                }
            write = vk.VkWriteDescriptorSet(
                dstSet=self.set, dstBinding=i, descriptorCount=1, descriptorType=kind, **info
            )
            vk.vkUpdateDescriptorSets(self.device.handle, 1, [write], 0, None)
        self.bound = bound


class VulkanDevice(Device):
    """A device that runs compute shaders on its first compute queue with timestamps."""

    widest = 4

    def __init__(self, physical: Any) -> None:
        self.vk = vk = _binding()
        self._memory = vk.vkGetPhysicalDeviceMemoryProperties(physical)
        families = vk.vkGetPhysicalDeviceQueueFamilyProperties(physical)
        family = next(
            (i for i, f in enumerate(families) if f.queueFlags & vk.VK_QUEUE_COMPUTE_BIT and f.timestampValidBits), None
        )
        if family is None:
            raise DeviceError(
                f"{vk.vkGetPhysicalDeviceProperties(physical).deviceName} has no queue that computes and has a clock"
            )
        queues = [vk.VkDeviceQueueCreateInfo(queueFamilyIndex=family, pQueuePriorities=[1.0])]
        half = _half_arithmetic(vk, physical)
        info = vk.VkDeviceCreateInfo(
            pNext=half, pQueueCreateInfos=queues, ppEnabledExtensionNames=[_HALF] if half else []
        )
        self.handle = vk.vkCreateDevice(physical, info, None)
        self.queue = vk.vkGetDeviceQueue(self.handle, family, 0)
        flags = vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT
        self._pool = vk.vkCreateCommandPool(
            self.handle, vk.VkCommandPoolCreateInfo(flags=flags, queueFamilyIndex=family), None
        )
        self._clock = vk.vkCreateQueryPool(
            self.handle, vk.VkQueryPoolCreateInfo(queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=2), None
        )
        limits = vk.vkGetPhysicalDeviceProperties(physical).limits
        self._step_ns, self._most_groups = limits.timestampPeriod, limits.maxComputeWorkGroupCount[0]
        self._bits = families[family].timestampValidBits
        self._waiting: list[Any] = []
        self.facts = _facts(vk, physical, self._memory, has_half=half is not None)

    def memory_type(self, allowed: int, wanted: int) -> int:
        """Return the first memory type with all `wanted` properties, else the first allowed one."""
        fit = [i for i in range(self._memory.memoryTypeCount) if allowed >> i & 1]
        return next((i for i in fit if self._memory.memoryTypes[i].propertyFlags & wanted == wanted), fit[0])

    def kernel(self, source: str, name: str, **macros: Any) -> Any:
        text = defines(macros) + source
        return _Kernel(self, compile_kernel(text, name, self.facts.name))

    def launch(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> float:
        self.finish()
        return self._timed(lambda commands: self._record(commands, kernel, global_size, local_size, arguments))

    def enqueue(self, kernel: Any, global_size: int, local_size: int, *arguments: Any) -> None:
        commands = self._begin()
        self._record(commands, kernel, global_size, local_size, arguments)
        self._submit(commands)

    def finish(self) -> None:
        if self._waiting:
            self.vk.vkQueueWaitIdle(self.queue)
            self.vk.vkFreeCommandBuffers(self.handle, self._pool, len(self._waiting), self._waiting)
            self._waiting = []

    def _begin(self) -> Any:
        vk = self.vk
        info = vk.VkCommandBufferAllocateInfo(
            commandPool=self._pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
        )
        commands = vk.vkAllocateCommandBuffers(self.handle, info)[0]
        vk.vkBeginCommandBuffer(
            commands, vk.VkCommandBufferBeginInfo(flags=vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT)
        )
        return commands

    def _submit(self, commands: Any) -> None:
        vk = self.vk
        vk.vkEndCommandBuffer(commands)
        vk.vkQueueSubmit(self.queue, 1, [vk.VkSubmitInfo(pCommandBuffers=[commands])], None)
        self._waiting.append(commands)

    def _record(
        self, commands: Any, kernel: _Kernel, global_size: int, local_size: int, arguments: tuple[Any, ...]
    ) -> None:
        vk = self.vk
        groups = global_size // local_size
        if local_size > self.facts.max_work_group_size or groups > self._most_groups or global_size % local_size:
            limits = f"a group of {self.facts.max_work_group_size} and {self._most_groups} groups are the most"
            raise KernelError(
                f"{self.facts.name} does not run {kernel.name} with {global_size} work-items in groups of {local_size}:"
                f" {limits}"
            )
        kernel.bind([a for a in arguments if isinstance(a, (_Buffer, _Image))])
        values = [
            struct.pack(_FORMATS[t], a.item()) for t, a in zip(kernel.types, arguments, strict=True) if t in _FORMATS
        ]
        vk.vkCmdBindPipeline(commands, vk.VK_PIPELINE_BIND_POINT_COMPUTE, kernel.pipeline(local_size))
        vk.vkCmdBindDescriptorSets(
            commands, vk.VK_PIPELINE_BIND_POINT_COMPUTE, kernel.layout, 0, 1, [kernel.set], 0, None
        )
        if values:
            data = vk.ffi.from_buffer(b"".join(values))
            vk.vkCmdPushConstants(commands, kernel.layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, 4 * len(values), data)
        vk.vkCmdDispatch(commands, groups, 1, 1)

    def _timed(self, record: Any) -> float:
        vk = self.vk
        commands = self._begin()
        vk.vkCmdResetQueryPool(commands, self._clock, 0, 2)
        vk.vkCmdWriteTimestamp(commands, vk.VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, self._clock, 0)
        record(commands)
        vk.vkCmdWriteTimestamp(commands, vk.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, self._clock, 1)
        self._submit(commands)
        self.finish()
        ticks = vk.ffi.new("uint64_t[2]")
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        vk.vkGetQueryPoolResults(self.handle, self._clock, 0, 2, 16, ticks, 8, flags)
        return max(float((ticks[1] - ticks[0]) % (1 << self._bits) * self._step_ns), 1.0) * 1e-9

    def buffer(self, data: np.ndarray | int) -> Any:
        size = data.nbytes if isinstance(data, np.ndarray) else data
        if size > self.facts.max_buffer_bytes:
            raise DeviceError(
                f"{self.facts.name} did not give a buffer of {size} bytes: {self.facts.max_buffer_bytes} are the most",
                size=size,
            )
        try:
            buffer = _Buffer(self, size)
        except self.vk.VkError as error:
            raise DeviceError(
                f"{self.facts.name} did not give a buffer of {size} bytes: {error!r}", size=size
            ) from error
        if isinstance(data, np.ndarray):
            self.write(buffer, data)
        else:
            self._timed(lambda commands: self.vk.vkCmdFillBuffer(commands, buffer.handle, 0, buffer.size, 0))
        return buffer

    def write(self, buffer: Any, data: np.ndarray) -> None:
        self.copy(buffer, self.staged(data), data.nbytes)

    def staged(self, data: np.ndarray) -> _Buffer:
        """Return a host-visible staging buffer that holds `data`."""
        staging = _Buffer(self, data.nbytes, is_for_host=True)
        mapped = self.vk.vkMapMemory(self.handle, staging.memory, 0, data.nbytes, 0)
        mapped[: data.nbytes] = np.ascontiguousarray(data).tobytes()
        self.vk.vkUnmapMemory(self.handle, staging.memory)
        return staging

    def read(self, buffer: Any, like: np.ndarray) -> np.ndarray:
        staging = _Buffer(self, like.nbytes, is_for_host=True)
        self.copy(staging, buffer, like.nbytes)
        mapped = self.vk.vkMapMemory(self.handle, staging.memory, 0, like.nbytes, 0)
        result = np.frombuffer(bytes(mapped[: like.nbytes]), like.dtype).reshape(like.shape)
        self.vk.vkUnmapMemory(self.handle, staging.memory)
        return result

    def image(self, texels: np.ndarray, *, is_written: bool = False) -> Any:
        vk = self.vk
        shape, rest = texels.shape[:-1], texels.nbytes
        try:
            if max(shape) > self.facts.max_image_width:
                raise vk.VkError(f"{self.facts.max_image_width} texels a side are the most")
            image = _Image(self, texels)
            # Copy in chunks of rows: a large image of zeros needs no staging buffer of its size.
            rows = max(1, _STAGED_BYTES // (rest // shape[0])) if len(shape) == 2 else 1
            self._timed(
                lambda commands: self._move(
                    commands, image, vk.VK_IMAGE_LAYOUT_UNDEFINED, vk.VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL
                )
            )
            for row in range(0, shape[0] if len(shape) == 2 else 1, rows):
                self._fill_rows(image, texels[row : row + rows] if len(shape) == 2 else texels[None], row)
            self._timed(
                lambda commands: self._move(
                    commands, image, vk.VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, vk.VK_IMAGE_LAYOUT_GENERAL
                )
            )
        except vk.VkError as error:
            raise DeviceError(
                f"{self.facts.name} did not give an image of {shape} texels: {error}", shape=texels.shape
            ) from error
        return image

    def _fill_rows(self, image: _Image, texels: np.ndarray, row: int) -> None:
        vk = self.vk
        staging = self.staged(texels)
        layers = vk.VkImageSubresourceLayers(aspectMask=vk.VK_IMAGE_ASPECT_COLOR_BIT, layerCount=1)
        extent = vk.VkExtent3D(width=texels.shape[1], height=texels.shape[0], depth=1)
        region = vk.VkBufferImageCopy(
            imageSubresource=layers, imageOffset=vk.VkOffset3D(x=0, y=row, z=0), imageExtent=extent
        )
        target = vk.VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL
        self._timed(
            lambda commands: vk.vkCmdCopyBufferToImage(commands, staging.handle, image.handle, target, 1, [region])
        )

    def _move(self, commands: Any, image: _Image, old: int, new: int) -> None:
        """Change the layout of an image, with a full barrier before and after."""
        vk, access, stage = (
            self.vk,
            self.vk.VK_ACCESS_MEMORY_READ_BIT | self.vk.VK_ACCESS_MEMORY_WRITE_BIT,
            self.vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
        )
        families = {
            "srcQueueFamilyIndex": vk.VK_QUEUE_FAMILY_IGNORED,
            "dstQueueFamilyIndex": vk.VK_QUEUE_FAMILY_IGNORED,
        }
        how = {"srcAccessMask": access, "dstAccessMask": access, "oldLayout": old, "newLayout": new, **families}
        barrier = vk.VkImageMemoryBarrier(image=image.handle, subresourceRange=image.range, **how)
        vk.vkCmdPipelineBarrier(commands, stage, stage, 0, 0, None, 0, None, 1, [barrier])

    def copy(self, to: Any, source: Any, size: int) -> float:
        self.finish()
        region = [self.vk.VkBufferCopy(srcOffset=0, dstOffset=0, size=size)]
        return self._timed(lambda commands: self.vk.vkCmdCopyBuffer(commands, source.handle, to.handle, 1, region))

    def lane(self, index: int) -> str:
        return f"[{index}]"


def list_devices() -> list[ListedDevice]:
    """Return the devices with Vulkan 1.1 or newer in the order of the loader. DeviceError without the binding."""
    vk = _binding()
    ranks = {
        vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: 0,
        vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: 0,
        vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: 0,
        vk.VK_PHYSICAL_DEVICE_TYPE_CPU: 1,
    }
    listed = []
    for physical in _physical_devices(vk):
        device = vk.vkGetPhysicalDeviceProperties(physical)
        if device.apiVersion >= _OLDEST:
            platform, driver = _driver(vk, physical, device)
            rank = ranks.get(device.deviceType, 2)
            listed.append(
                ListedDevice(handle=physical, name=device.deviceName, platform=platform, driver=driver, rank=rank)
            )
    return listed


def _driver(vk: Any, physical: Any, device: Any) -> tuple[str, str]:
    """Return the names of a device's driver and of its version, which the driver states since Vulkan 1.2."""
    driver = vk.VkPhysicalDeviceDriverProperties()
    if device.apiVersion >= vk.VK_MAKE_VERSION(1, 2, 0):
        vk.vkGetPhysicalDeviceProperties2(physical, vk.VkPhysicalDeviceProperties2(pNext=driver))
    name, info = (vk.ffi.string(text).decode() for text in (driver.driverName, driver.driverInfo))
    return name or "Vulkan", info or f"{device.driverVersion:#x}"


def _binding() -> Any:
    try:
        import vulkan
    except (ImportError, OSError) as error:
        raise DeviceError(
            "Vulkan needs its loader and the package vulkan; `apt-get install libvulkan1`, `pip install vulkan`"
            f" ({error})"
        ) from error
    return vulkan


@functools.cache
def _physical_devices(vk: Any) -> list[Any]:
    app = vk.VkApplicationInfo(pApplicationName="archprobe", apiVersion=vk.VK_MAKE_VERSION(1, 1, 0))
    try:
        instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=app), None)
        return list(vk.vkEnumeratePhysicalDevices(instance))
    except vk.VkError:
        return []


def _half_arithmetic(vk: Any, physical: Any) -> Any:
    """Return the feature fp16 arithmetic, to be enabled. None if the device lacks it."""
    if _HALF not in {extension.extensionName for extension in vk.vkEnumerateDeviceExtensionProperties(physical, None)}:
        return None
    features = vk.VkPhysicalDeviceShaderFloat16Int8Features()
    vk.vkGetPhysicalDeviceFeatures2(physical, vk.VkPhysicalDeviceFeatures2(pNext=features))
    return vk.VkPhysicalDeviceShaderFloat16Int8Features(shaderFloat16=True) if features.shaderFloat16 else None


def _facts(vk: Any, physical: Any, memory: Any, *, has_half: bool) -> Facts:
    device = vk.vkGetPhysicalDeviceProperties(physical)
    limits = device.limits
    local = vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
    room = max(
        (memory.memoryHeaps[i].size for i in range(memory.memoryHeapCount) if memory.memoryHeaps[i].flags & local),
        default=0,
    )
    version = f"{device.apiVersion >> 22}.{device.apiVersion >> 12 & 0x3FF}.{device.apiVersion & 0xFFF}"
    return Facts(
        api="vulkan",
        name=device.deviceName,
        vendor=f"{device.vendorID:#06x}",
        driver=f"{device.driverVersion:#x}",
        platform="Vulkan",
        version=f"Vulkan {version}",
        is_cpu=device.deviceType == vk.VK_PHYSICAL_DEVICE_TYPE_CPU,
        compute_units=0,
        clock_mhz=0,
        max_work_group_size=min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]),
        local_mem_bytes=limits.maxComputeSharedMemorySize,
        constant_bytes=limits.maxUniformBufferRange,
        global_mem_bytes=room,
        max_buffer_bytes=min(limits.maxStorageBufferRange, room),
        has_images=True,
        max_image_width=min(limits.maxImageDimension1D, limits.maxImageDimension2D),
        max_image_height=limits.maxImageDimension2D,
        timer_step_ns=max(1, round(limits.timestampPeriod)),
        extensions=("shaderFloat16",) if has_half else (),
    )


KIND = DeviceKind(
    name="vulkan",
    title="Vulkan",
    list_devices=list_devices,
    open=lambda device: VulkanDevice(device.handle),
    driver_hint="install the GPU's driver, or mesa-vulkan-drivers for the CPU",
    variable="ROMOU_VULKAN_DEVICE",
)
