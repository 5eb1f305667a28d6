"""A compilation target: a backend, its checked options, and the facts and limits that follow from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from romou.base.errors import UsageError
from romou.base.foreign import refused
from romou.base.limits import LOCAL_MEMORY_ALPHA, Limits
from romou.base.schema import shown
from romou.base.variants import VARIANTS
from romou.devices.backends import DEFAULT_KIND
from romou.devices.backends.base import BUFFER_BYTES, Backend
from romou.devices.hardware import HardwareSpec, device_called, load_device
from romou.devices.hardware.quirks import rules_for
from romou.devices.presets import load_preset, preset_for
from romou.devices.targets.text import ATTACHED, checked_options, parse, parse_json

if TYPE_CHECKING:
    import tvm.target


class Target:
    """An immutable compilation target. Equal targets have equal text.

    Target("opencl")                            the attached device, whose driver gives the limits
    Target("opencl -device=host")               the CPU through OpenCL (PoCL)
    Target("opencl -device=adreno640")          facts from romou/devices/hardware/devices/adreno640.json
    Target("opencl -device=adreno640 -half=storage")      the same without fp16 arithmetic
    Target("opencl -device=mali_g76 -images=never")       every tensor in a buffer (prefer: in images; or weights)
    Target("opencl -device=adreno740 -facts=nearest")     unknown facts from adreno640.json, except for limits
    Target({"kind": "opencl", "device": "QUALCOMM Adreno(TM) 740"})        a device by its driver's name for it
    Target("opencl -device=adreno640", host="aarch64-linux-android")       kernels and host code for a phone
    Target("cuda"), Target("cuda -device=nvidia_h200")                     the attached NVIDIA GPU, or facts from a file
    Target("cuda -arch=sm_80")                  machine code for another architecture than the device's
    Target("cuda -tf32=allow")                  kernels may round the factors of products of floats to TF32
    Target("opencl -variant=k1conv")            operators that have Boda's variant keep to it
    Target("null")                              no kernels: the reference runs on the host
    Target({"kind": "opencl", "device": "mali_g76"}), Target(tvm_target)

    TVM is imported only by `tvm_target`.

    Parameters
    ----------
    target
        Text ("opencl -device=adreno640"), a dict in TVM's form, a tvm Target, or another Target.
    host
        LLVM triple of the machine that runs the host code, e.g. "aarch64-linux-android". None is this machine.

    Raises
    ------
    UsageError
        An unknown kind, device or option (with the known ones and the nearest name) or a value out of range.
    """

    __slots__ = ("_options", "_spec", "_tvm_target", "backend")

    backend: Backend

    def __init__(
        self, target: str | Mapping[str, Any] | tvm.target.Target | Target = DEFAULT_KIND, *, host: str | None = None
    ) -> None:
        self.backend, options = (target.backend, target.options) if isinstance(target, Target) else parse(target)
        self._options = checked_options(self.backend, options | ({} if host is None else {"host": host}))
        self._spec: HardwareSpec | None = None
        self._tvm_target: Any = None

    @property
    def kind(self) -> str:
        """Return the device kind, which is the backend's name."""
        return self.backend.name

    @property
    def options(self) -> dict[str, Any]:
        """Return all options except for the kind, checked. Limits have TVM's names."""
        return dict(self._options)

    @property
    def device_name(self) -> str | None:
        """Return the name of the device that the facts describe. None for the attached one."""
        return self._options.get("device")

    @property
    def host(self) -> str | None:
        """Return the LLVM triple of the machine that runs the host code. None for this machine."""
        return self._options.get("host")

    @property
    def spec(self) -> HardwareSpec:
        """Return the facts of the device: from the file of a named one, or from the driver of the attached one.

        Raises
        ------
        DeviceError
            No device was named and none is attached.
        """
        if self._spec is None:
            spec = self.backend.spec(self.device_name)
            self._spec = self._guessed(spec) if self._options.get("facts") == "nearest" else spec
        return self._spec

    @property
    def similar_spec(self) -> HardwareSpec:
        """Return the facts of the device. What is not known is the most similar measured device's, if there is one."""
        return self._guessed(self.spec) if self.spec.nearest else self.spec

    @staticmethod
    def _guessed(spec: HardwareSpec) -> HardwareSpec:
        if spec.nearest is None:
            raise UsageError(
                f"-facts=nearest: of {spec.title} no similar device is known of which more was measured",
                hint="Leave it out.",
            )
        return spec.guessed_from(load_device(spec.nearest))

    @property
    def _known_limits(self) -> dict[str, int]:
        """Return limits by TVM's names. The target's options override the device's limits."""
        return self.backend.device_limits(self.spec) | {
            name: self._options[name] for name in self.backend.limit_names if name in self._options
        }

    @property
    def limits(self) -> Limits:
        """Return the limits that kernels keep to, and the facts that default configs depend on."""
        numbers, spec = {**self.backend.default_limits, **self._known_limits}, self.spec
        group, is_cpu = numbers["max_num_threads"], spec.is_cpu
        # Facts about caches may be the nearest device's, and so may the family.
        similar = self.similar_spec
        has_images = self._may_have_images and "texture_spatial_limit" in self._known_limits
        max_image = (numbers["texture_spatial_limit"],) * 2 + (numbers["texture_depth_limit"],) if has_images else None
        # A work group per core fills a CPU. If the number of cores is unknown, defaults do not try to fill them.
        busy = group * spec.shader_cores if spec.shader_cores and not is_cpu else 1
        is_alpha_known = not is_cpu and spec.alus_per_core is not None
        own_preset = self.backend.preset_name(similar)
        pooled = spec.registers_per_core if spec.register_file == "pooled" else None
        return Limits(
            max_work_group_size=group,
            local_memory_bytes=numbers["max_shared_memory_per_block"],
            preset=preset_for(similar) if own_preset is None else load_preset(own_preset),
            family=similar.family,
            is_mobile=similar.is_phone_gpu,
            is_cpu=is_cpu,
            busy_work_items=busy,
            warp_size=min(spec.warp_sizes or (1,)),
            most_with_local_memory=int(LOCAL_MEMORY_ALPHA * (spec.alus_per_core or 0)) if is_alpha_known else None,
            registers=spec.registers_per_lane,
            registers_of_all=None if pooled is None else pooled * (spec.shader_cores or 1),
            max_buffers=numbers.get(self.backend.buffer_limit),
            max_buffer_bytes=numbers.get(BUFFER_BYTES),
            instructions_per_byte=spec.instructions_per_byte,
            gains_by_autobroadcast=bool(spec.has_scalar_vector_broadcast),
            max_image=max_image,
            prefers_images=has_images and (self._images == "prefer" or similar.prefers_images),
            variant=self._options.get("variant"),
            without=tuple(tuple(pair.split(":")) for pair in str(self._options.get("without", "")).split("+") if pair),  # type: ignore[misc]
            **self.backend.abilities(spec, self._options),
        )

    @property
    def places_activations(self) -> bool:
        """Return whether activations are put into images."""
        return self.limits.prefers_images and self._images != "weights"

    @property
    def _may_have_images(self) -> bool:
        # A CPU emulates texture units, slowly.
        return self.backend.has_images and not self.spec.is_cpu and self._images != "never"

    @property
    def _images(self) -> str | None:
        """Return the option `-images`, or else the variant's value of it."""
        variant = self._options.get("variant")
        implied = None if variant is None else VARIANTS[variant].images
        images: str | None = self._options.get("images", implied)
        return images

    @property
    def lacks_image_sizes(self) -> bool:
        """Return whether kernels keep to buffers only because the largest size of an image is not known."""
        return self._may_have_images and "texture_spatial_limit" not in self._known_limits

    @property
    def tvm_target(self) -> tvm.target.Target:
        """Return the target for TVM, with limits and host. Unknown limits keep TVM's defaults."""
        if self._tvm_target is None:
            import tvm.target

            # Host code only checks arguments and launches. Unoptimized it is as fast, and compiles three times faster.
            host = {"kind": "llvm", "opt-level": 0} | ({} if self.host is None else {"mtriple": self.host})
            config = self.backend.tvm_config(self._options, self._known_limits)
            self._tvm_target = tvm.target.Target({**config, "model": self.device_name or ATTACHED}, host=host)
        return self._tvm_target

    @property
    def anonymous_tvm_target(self) -> tvm.target.Target:
        """Return `tvm_target` without the device's name and the host's triple.

        TVM's default schedules need it, because its schedules for Adreno and Android (dlight's GEMV) compute wrong
        sums.
        """
        import tvm.target

        options = {k: v for k, v in self.tvm_target.export().items() if k not in ("model", "host", "tag")}
        return tvm.target.Target(options, host={"kind": "llvm"})

    def with_options(self, **options: Any) -> Target:
        """Return this target with some `options` replaced, which are checked."""
        return Target({"kind": self.kind, **self._options, **options})

    def limited_to(self, facts: Mapping[str, Any]) -> Target:
        """Return this target within the limits of an attached device, with the workarounds for its driver's quirks.

        Kernels for a phone may be measured on another device, so they have to run there, too.

        facts    the device's entry of `Backend.list_devices`
        """
        limits = {**self.backend.default_limits, **self._known_limits}
        allowed = self.backend.narrower_options(limits, self.backend.abilities(self.spec, self._options), facts)
        option_names = [option.name for option in self.backend.options]
        quirks = {name: value for name, value in rules_for(facts).target_options().items() if name in option_names}
        lower = allowed | quirks
        left_out = {
            pair
            for options in (self._options, allowed, quirks)
            for pair in options.get("without", "").split("+")
            if pair
        }
        if left_out - {*self._options.get("without", "").split("+")}:
            lower["without"] = "+".join(sorted(left_out))
        return self.with_options(**lower) if lower else self

    def missing_on(self, facts: Mapping[str, Any]) -> str:
        """Return the name of the device that this target names, if the described device is another one, else "".

        A GPU whose driver says no known name may be any GPU.

        facts    the device's entry of `Backend.list_devices`
        """
        if self.device_name is None:
            return ""
        spec, called = self.spec, self.backend.device_of(facts)
        is_other = (facts["type"] == "cpu") != spec.is_cpu or called not in (None, spec.name, device_called(spec.title))
        return spec.name if is_other else ""

    def to_json(self) -> str:
        """Return canonical JSON text. ``Target.from_json`` makes an equal target of it."""
        return json.dumps({"kind": self.kind, **self._options}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Target:
        """Return the target that ``to_json`` wrote. UsageError if `text` is no such JSON."""
        with refused(UsageError, f"target {shown(text)}"):
            return Target(parse_json(text))

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"-{name}={value}" for name, value in self._options.items())])

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Target) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Target, (str(self),)
