"""Common part of OpenCL and Vulkan: drivers of any vendor, images, and recorded command buffers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from romou.base.errors import DeviceError, UsageError
from romou.base.limits import SubGroups
from romou.devices.backends.base import BUFFER_BYTES, WITHOUT, Backend, CapturedRun, TargetOption
from romou.devices.backends.reference_kernel import ReferenceKernel
from romou.devices.hardware import HardwareSpec, load_device
from tvm_patches.runtime import global_function

if TYPE_CHECKING:
    import tvm.runtime

FP16 = TargetOption(
    name="half", pattern="arithmetic|storage", error="target option -half={value}: must be arithmetic or storage"
)
IMAGE_LIMITS = ("texture_depth_limit", "texture_spatial_limit")
# A size of buffers that no model reaches, and the largest number in a target's text.
_NO_LIMIT = 2**31 - 1


class RecordedRun:
    """A run in a command buffer or a list of launches, with the memory that it was recorded with.

    recording: the runtime's object, which records already.
    """

    def __init__(self, recording: Any, run: Callable[[], None]) -> None:
        # Deleting the object ends the recording, whatever happened.
        run()
        launches = recording["finish"]()
        self.what = f"{recording['what']()} of {launches} launches"
        self._launch, self._time_ns = recording["launch"], recording["time_ns"]

    def launch(self) -> None:
        self._launch()

    def time_ms(self) -> float:
        return float(self._time_ns()) * 1e-6


class ComputeApi(Backend):
    """A kind with devices of several drivers, in the order of `tvm.device(kind, i)`.

    driver_hint      how to get a driver
    missing          packages or files that a machine without a device may lack, for a person
    """

    driver_hint: str
    missing: str
    has_images = True
    is_served = True

    def attached(self) -> list[dict[str, Any]] | None:
        """Return the runtime's answer to `list_devices`. None if the runtime is not loaded.

        UsageError if the kind's variable (ROMOU_OPENCL_DEVICE, ROMOU_VULKAN_DEVICE) matches no device.
        """
        ask = global_function(self.function("devices"), allow_missing=True)
        if ask is None:
            return None
        try:
            return list(json.loads(str(ask())))
        except ValueError as error:
            message, *devices, hint = str(error).strip().splitlines()
            listed = ", ".join(line.strip() for line in devices)
            raise UsageError(
                f"{message} {listed}", hint=hint, variable=self.device_variable.partition("=")[0]
            ) from error

    def asked_of(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields of `HardwareSpec` that only drivers of this kind state."""
        raise NotImplementedError

    def clock_kernel(self) -> str | bytes:
        """Return a kernel `clock_check(float *out, int iterations)` for the runtime's function "source_kernel".

        Each of its four chains is a sequence of dependent fused multiply-adds, so its time depends on the clock and not
        on memory.
        """
        raise NotImplementedError

    def spec(self, device_name: str | None) -> HardwareSpec:
        """See `Backend.spec`. For "host", limits come from the CPU's driver and other facts from host.json."""
        if device_name != "host":
            return super().spec(device_name)
        minimum = load_device("host")
        try:
            asked = self._asked_spec(self.facts(self.device_index("host")))
        except DeviceError:
            return minimum
        return dataclasses.replace(asked, name=minimum.name, title=minimum.title).filled_from(minimum)

    def attached_spec(self) -> HardwareSpec:
        facts = self.facts(self.device_index(None))
        return self.with_known_facts(self._asked_spec(facts), facts)

    def device_limits(self, spec: HardwareSpec) -> dict[str, int]:
        sides = [n for n in (spec.max_image_width_texels, spec.max_image_height_texels) if n]
        limits = super().device_limits(spec) | ({"texture_spatial_limit": min(sides)} if sides else {})
        return limits | ({BUFFER_BYTES: spec.max_buffer_bytes} if spec.max_buffer_bytes else {})

    def sub_groups(self, spec: HardwareSpec) -> SubGroups | None:
        """Return the operations of sub-groups that kernels may use. None if there are none or they are unknown."""
        reductions, shuffles = bool(spec.has_sub_group_reductions), bool(spec.has_sub_group_shuffles)
        if spec.sub_group_size is None or not (reductions or shuffles):
            return None
        return SubGroups(size=spec.sub_group_size, has_reductions=reductions, has_shuffles=shuffles)

    def sub_groups_there(self, wanted: SubGroups, facts: Mapping[str, Any]) -> SubGroups | None:
        """Return the sub-groups that kernels for `wanted` get on an attached device.

        They have the wanted size if the device lets kernels choose it. None if kernels get no sub-groups.
        """
        raise NotImplementedError

    def narrower_options(
        self, limits: Mapping[str, int], abilities: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Backend.narrower_options`. The size of a buffer is unlimited if the target has no limit for it."""
        options = super().narrower_options(limits, abilities, facts)
        wanted: SubGroups | None = abilities["sub_groups"]
        if wanted is not None:
            there = self.sub_groups_there(wanted, facts)
            options |= (
                {} if there is not None and there.includes(wanted) else {WITHOUT.name: f"sub_group:{wanted.size}"}
            )
        bytes_ = int(facts.get("max_alloc_bytes", _NO_LIMIT))
        is_narrower = bytes_ < limits.get(BUFFER_BYTES, _NO_LIMIT)
        return options | ({BUFFER_BYTES: bytes_} if is_narrower else {})

    def allowed_limits(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """See `Backend.allowed_limits`. Without images no tensor fits into one texel, so all are in buffers."""
        sides, layers = min(facts["max_image_width"], facts["max_image_height"]), facts["max_image_layers"]
        spatial, depth = (int(sides), int(layers)) if facts["has_images"] else (1, 1)
        return super().allowed_limits(facts) | {"texture_spatial_limit": spatial, "texture_depth_limit": depth}

    def no_device_error(self, index: int, devices: list[dict[str, Any]]) -> DeviceError:
        if devices:
            return super().no_device_error(index, devices)
        return DeviceError(
            f"no {self.title} device: {self.missing}", index=index, hint="`romou doctor` says what is missing."
        )

    def device_index(self, device_name: str | None, devices: list[dict[str, Any]] | None = None) -> int:
        """See `Backend.device_index`. For "host" it is the first CPU. DeviceError if no device is a CPU."""
        devices = self.list_devices() if devices is None else devices
        index = super().device_index(device_name, devices)
        if device_name != "host":
            return index
        for index, facts in enumerate(devices):
            if facts["type"] == "cpu":
                return index
        names = ", ".join(str(facts["name"]) for facts in devices)
        text = f"-device=host means the CPU through {self.title}, but the runtime sees only {names}"
        raise DeviceError(text, hint=self.driver_hint, device="host")

    def drop_weights(self, executable: Any) -> None:
        global_function(self.function("drop_constants"))(executable)

    def can_record(self, facts: Mapping[str, Any]) -> bool:
        return True

    def record(self, device: tvm.runtime.Device, vm: Any, run: Callable[[], None]) -> CapturedRun:
        return RecordedRun(self.begin_recording(device.index), run)

    def begin_recording(self, index: int) -> Any:
        """Record what this thread launches from now on. Return the runtime's object."""
        return global_function(self.function("record"))(index)

    def reference_kernel(self, session: Any, index: int, facts: Mapping[str, Any]) -> ReferenceKernel:
        module = session.get_function(self.function("source_kernel"))(index, self.clock_kernel(), "clock_check")
        return ReferenceKernel(module, session.device(self.device_type, index), facts)

    def _asked_spec(self, facts: Mapping[str, Any]) -> HardwareSpec:
        # Only facts that a driver states. Caches, registers and bandwidths stay unknown until they are measured.
        asked: dict[str, Any] = {
            "shader_cores": facts["compute_units"],
            "max_work_group_size": facts["max_work_group_size"],
            "local_mem_bytes": facts["local_mem_bytes"],
            "max_image_width_texels": facts["max_image_width"],
            "max_image_height_texels": facts["max_image_height"],
            "max_buffer_bytes": bytes_
            if (bytes_ := int(facts.get("max_alloc_bytes", _NO_LIMIT))) < _NO_LIMIT
            else None,
            "clock_mhz": facts.get("clock_mhz"),
            **self.asked_of(facts),
        }
        if facts["type"] == "cpu":
            asked["warp_sizes"] = (1,)
        stated: dict[str, Any] = {key: value for key, value in asked.items() if value or value is False}
        source = f"asked from the driver of {facts['name']} ({facts['platform']})"
        return HardwareSpec(
            name=str(facts["name"]),
            title=f"{facts['name']} ({facts['platform']})",
            sources=dict.fromkeys(stated, source),
            **stated,
        )
