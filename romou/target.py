"""What a model is compiled for: a device kind, the facts of one device, and where the host code runs.

    Target("opencl")                            the attached device, asked for its limits when they are first needed
    Target("opencl -device=host")               the CPU through OpenCL (PoCL)
    Target("opencl -device=adreno640")          facts from romou/hardware/devices/adreno640.json
    Target("opencl -device=adreno640 -half=storage")      the same, less half-precision arithmetic
    Target("opencl -device=adreno640", host="aarch64-linux-android")       kernels and host code for a phone
    Target("cuda"), Target("cuda -device=nvidia_h200")                     the attached NVIDIA GPU; facts from a file
    Target("cuda -arch=sm_80")                  machine code for another architecture than the device's
    Target("cuda -tf32=allow")                  kernels may round the factors of products of floats to TF32
    Target({"kind": "opencl", "device": "mali_g76"}), Target(tvm_target)

TVM no longer parses "-key=value" text, so this file does. TVM itself is imported only when `tvm_target` is asked for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from romou.core.errors import UsageError, unknown_name
from romou.core.limits import Limits
from romou.hardware import HardwareSpec, load_device

if TYPE_CHECKING:
    import tvm.target

KINDS = ("opencl", "cuda")
_LATER_KINDS = ("vulkan",)
_KNOWN_KINDS_TEXT = f"known kinds: {', '.join(KINDS)} ({' and '.join(_LATER_KINDS)} is planned, not in this version)"

# Limits that may be overridden in the target text, by TVM's names; all are whole numbers above zero.
LIMITS = (
    "image_base_address_alignment",
    "max_function_args",
    "max_num_threads",
    "max_shared_memory_per_block",
    "texture_depth_limit",
    "texture_spatial_limit",
    "thread_warp_size",
)
COMMON_LIMITS = ("max_num_threads", "max_shared_memory_per_block", "thread_warp_size")
# Kind -> what its text may set.
_OPTIONS = {"opencl": ("device", "host", "half", *LIMITS), "cuda": ("device", "arch", "host", "tf32", *COMMON_LIMITS)}
# What halfs are for: numbers to compute with, where the device can, or only to store.
_HALF_USES = ("arithmetic", "storage")
# It changes numbers: without a word nobody's products are rounded.
_TF32_USES = ("allow",)

_CUDA_SHARED_BYTES = 49152
# Device file -> architecture, which a report measured through OpenCL does not tell. With the suffix, all instructions of the generation.
CUDA_ARCHITECTURES = {"nvidia_h200": "sm_90a"}

# The first architecture with mma.sync.m16n8k16 (PTX ISA).
_TENSOR_CORES_FROM = 80

# TVM keeps free text in "model"; it carries the device through a tvm Target and back.
_ATTACHED = "attached"
_DEFAULT_TVM_KEYS = {"opencl", "cuda", "gpu"}


class Target:
    """An immutable compilation target; equal targets have equal text.

    Parameters
    ----------
    target
        Text ("opencl -device=adreno640"), a dict in TVM's form, a tvm Target, or another Target.
    host
        LLVM triple of the machine that runs the host code, e.g. "aarch64-linux-android"; None is this machine.

    Raises
    ------
    UsageError
        For an unknown kind, device or option (with the known ones and the nearest name) or a value out of range.
    """

    __slots__ = ("_arch", "_device_name", "_half", "_host", "_kind", "_limits", "_spec", "_tf32", "_tvm_target")

    def __init__(self, target: str | Mapping[str, Any] | tvm.target.Target | Target = "opencl", *, host: str | None = None) -> None:
        if isinstance(target, Target):
            kind, options = target.kind, target._options()
        elif isinstance(target, str):
            kind, options = _parse_text(target)
        elif isinstance(target, Mapping):
            kind, options = _parse_mapping(target)
        elif hasattr(target, "export"):
            kind, options = _parse_mapping(target.export())
        else:
            raise UsageError(f"a target is text, a dict or a tvm Target; got {type(target).__name__}", value=repr(target))
        if host is not None:
            options["host"] = host
        self._kind = kind
        self._device_name, self._host, self._half, self._arch, self._tf32, self._limits = _checked_options(kind, options)
        self._spec: HardwareSpec | None = None
        self._tvm_target: Any = None
        if self._device_name is not None:
            # An unknown device fails here, not at first use; so does one whose architecture is not known.
            load_device(self._device_name)
            if kind == "cuda":
                cuda_architecture(self._device_name)

    @property
    def kind(self) -> str:
        """The device kind, "opencl" or "cuda"."""
        return self._kind

    @property
    def device_name(self) -> str | None:
        """The device whose facts are used; None: the attached one."""
        return self._device_name

    @property
    def host(self) -> str | None:
        """LLVM triple of the machine that runs the host code; None: this machine."""
        return self._host

    @property
    def given_limits(self) -> dict[str, int]:
        """Limits given in the target itself, by TVM's names; they win over those of the spec."""
        return dict(self._limits)

    @property
    def has_half_arithmetic(self) -> bool:
        """Whether kernels may compute in half precision; storing halfs is always possible.

        Not in CUDA: its scalar halfs are no faster than floats.
        """
        return self._kind == "opencl" and self._half != "storage" and bool(self.spec.has_half_arithmetic)

    @property
    def has_tensor_cores(self) -> bool:
        """Whether warps multiply matrices of halfs, 16 deep, by one instruction: NVIDIA GPUs of compute capability 8.0 and newer."""
        number = re.match(r"sm_(\d+)", self.arch or "")
        return number is not None and int(number[1]) >= _TENSOR_CORES_FROM

    @property
    def allows_tf32(self) -> bool:
        """Whether kernels may multiply floats on tensor cores, which round them to TF32: to 10 bits behind the point, as halfs have."""
        return self._tf32 == "allow" and self.has_tensor_cores

    def allowing_tf32(self) -> Target:
        """This target with `allows_tf32`, as far as its GPU has tensor cores. UsageError for any other kind than "cuda"."""
        if self._kind != "cuda":
            raise UsageError(f"TF32 is a format of NVIDIA's tensor cores; the target is {str(self)!r}", hint="Leave allow_tf32 out, or use target 'cuda'.")
        return Target({"kind": self._kind, **self._options(), "tf32": "allow"})

    @property
    def arch(self) -> str | None:
        """What CUDA's compiler makes code for, e.g. "sm_90a": as given, else the named device's, else the attached one's; None in OpenCL.

        Raises
        ------
        DeviceError
            None was given, no device was named and none is attached.
        """
        if self._kind != "cuda" or self._arch is not None:
            return self._arch
        if self._device_name is not None:
            return cuda_architecture(self._device_name)
        from romou.backends.cuda import devices

        return devices.attached_architecture()

    @property
    def spec(self) -> HardwareSpec:
        """Facts of the device.

        A named GPU comes from its file. "host" and no name ask the attached device once; without one, "host" falls
        back to OpenCL's minimum.

        Raises
        ------
        DeviceError
            No device was named and none is attached.
        """
        if self._spec is None:
            if self._device_name is None:
                self._spec = self._attached_spec()
            elif self._device_name == "host":
                from romou.backends.opencl import devices

                self._spec = devices.host_spec()
            else:
                self._spec = load_device(self._device_name)
        return self._spec

    @property
    def limits(self) -> Limits:
        """What kernels have to keep to, and what the device likes."""
        attrs = self.tvm_target.attrs
        group = int(attrs["max_num_threads"])
        spec = self.spec
        is_cpu = spec.warp_sizes == (1,)
        # A CPU is busy with a work group a core; where the number of cores is unknown, no default is bent to fill them.
        busy = group * spec.shader_cores if spec.shader_cores and not is_cpu else 1
        # A CPU computes what a texture unit does, slowly.
        has_images = self.kind == "opencl" and bool(spec.max_image_width_texels and spec.max_image_height_texels) and not is_cpu
        return Limits(
            max_work_group_size=group,
            local_memory_bytes=int(attrs["max_shared_memory_per_block"]),
            busy_work_items=busy,
            warp_size=min(spec.warp_sizes or (1,)),
            max_image=(int(attrs["texture_spatial_limit"]),) * 2 + (int(attrs["texture_depth_limit"]),) if has_images else None,
            has_half_arithmetic=self.has_half_arithmetic,
            has_vector_arithmetic=self.kind == "opencl",
            has_tensor_cores=self.has_tensor_cores,
            allows_tf32=self.allows_tf32,
            prefers_images=bool(has_images and spec.l1_texture_cache_bytes and spec.l1_buffer_cache_bytes == 0),
        )

    @property
    def tvm_target(self) -> tvm.target.Target:
        """The target for TVM, limits and host included; facts that are not known keep TVM's defaults."""
        if self._tvm_target is None:
            import tvm.target

            host = {"kind": "llvm"} if self._host is None else {"kind": "llvm", "mtriple": self._host}
            limits = {**self._derived_limits(), **self._limits}
            if "max_num_threads" in limits:
                # TVM has two names for the largest work group; its passes read one or the other.
                limits["max_threads_per_block"] = limits["max_num_threads"]
            config = {"kind": self._kind, "model": self._device_name or _ATTACHED, **limits}
            if self._kind == "cuda":
                from romou.backends.cuda import compiler

                config["arch"] = self.arch
                compiler.install()
            self._tvm_target = tvm.target.Target(config, host=host)
        return self._tvm_target

    def limited_to(self, facts: Mapping[str, Any]) -> Target:
        """This target with no limit above what an attached device allows (an entry of `romou.backends.opencl.list_devices`).

        A phone's target may be measured on another device: kernels must run there too.
        """
        attrs = self.tvm_target.export()
        allowed = {"max_num_threads": facts["max_work_group_size"], "max_shared_memory_per_block": facts["local_mem_bytes"]}
        if self._kind == "opencl":
            sides = min(facts["max_image_width"], facts["max_image_height"])
            # Without images nothing fits into one texel: everything stays in buffers.
            allowed["texture_spatial_limit"] = sides if facts["has_images"] else 1
            allowed["texture_depth_limit"] = facts["max_image_layers"] if facts["has_images"] else 1
        lower: dict[str, Any] = {name: int(limit) for name, limit in allowed.items() if int(limit) < int(attrs[name])}
        if self.has_half_arithmetic and "cl_khr_fp16" not in facts["extensions"].split():
            lower["half"] = "storage"
        return Target({"kind": self._kind, **self._options(), **lower}) if lower else self

    @property
    def anonymous_tvm_target(self) -> tvm.target.Target:
        """`tvm_target` without the device's name and the host's triple: the same limits, seen by TVM as any device of the kind.

        For TVM's own default schedules: those that it keeps for Adreno and Android (dlight's GEMV) compute wrong sums.
        """
        import tvm.target

        options = {k: v for k, v in self.tvm_target.export().items() if k not in ("model", "host", "tag")}
        return tvm.target.Target(options, host={"kind": "llvm"})

    def _attached_spec(self) -> HardwareSpec:
        from romou.backends import backend

        found = backend(self._kind).attached_spec()
        assert isinstance(found, HardwareSpec)
        return found

    def _derived_limits(self) -> dict[str, int]:
        spec = self.spec
        if self._kind == "cuda":
            # Without opting in, a block has no more shared memory than this, whatever the device holds.
            shared = min(spec.local_mem_bytes or _CUDA_SHARED_BYTES, _CUDA_SHARED_BYTES)
            return {"max_num_threads": spec.max_work_group_size or 1024, "thread_warp_size": 32, "max_shared_memory_per_block": shared}
        sides = [n for n in (spec.max_image_width_texels, spec.max_image_height_texels) if n]
        found = {
            "max_num_threads": spec.max_work_group_size,
            # With a larger number TVM leaves out barriers between work-items of a warp. OpenCL promises no lockstep, drivers choose the
            # warp size by kernel, and a CPU that stands in for the phone has none: the sums of such a kernel are wrong there.
            "thread_warp_size": 1,
            "max_shared_memory_per_block": spec.local_mem_bytes,
            "texture_spatial_limit": min(sides) if sides else None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"device": self._device_name, "host": self._host, "half": self._half, "arch": self._arch, "tf32": self._tf32}
        return {k: v for k, v in options.items() if v is not None} | self._limits

    def to_json(self) -> str:
        """Canonical JSON text; ``Target.from_json`` gives an equal target."""
        return json.dumps({"kind": self._kind, **self._options()}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Target:
        """The target that ``to_json`` wrote; UsageError if `text` is not such JSON."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UsageError(f"target is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise UsageError(f"target JSON must be an object, got {type(data).__name__}")
        return Target(data)

    def __str__(self) -> str:
        options = self._options()
        ordered = [name for name in _OPTIONS[self._kind] if name in options]
        return " ".join([self._kind, *(f"-{name}={options[name]}" for name in ordered)])

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Target) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Target, (str(self),)


def cuda_architecture(device_name: str) -> str:
    """What CUDA's compiler calls the architecture of a device of romou/hardware/devices; UsageError for one that CUDA does not run on."""
    if device_name not in CUDA_ARCHITECTURES:
        known = ", ".join(sorted(CUDA_ARCHITECTURES))
        raise UsageError(f"device {device_name!r} is no CUDA device; with -device= cuda knows {known}", hint="Leave -device= out for the attached GPU.")
    return CUDA_ARCHITECTURES[device_name]


def _checked_kind(kind: Any) -> str:
    if kind in KINDS:
        return str(kind)
    if kind in _LATER_KINDS:
        raise UsageError(f"target kind {kind!r} is not supported in this version; {_KNOWN_KINDS_TEXT}", hint="Use 'opencl'.", kind=kind)
    raise UsageError(f"unknown target kind {kind!r}; {_KNOWN_KINDS_TEXT}", hint="A target starts with its kind: 'opencl -device=host'.", kind=kind)


def _parse_text(text: str) -> tuple[str, dict[str, Any]]:
    """ "opencl -device=host -max_num_threads=64" -> ("opencl", {"device": "host", "max_num_threads": "64"})."""
    stripped = text.strip()
    if stripped.startswith("{"):
        target = Target.from_json(stripped)
        return target.kind, target._options()
    words = _split(text)
    kind = _checked_kind(words[0] if words else "")
    options: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not equals or not value:
            raise UsageError(f"target {text!r}: cannot read {word!r}", hint="Options have the form -name=value, e.g. -device=host.", word=word)
        if name in options:
            raise UsageError(f"target {text!r}: -{name} is given twice ({options[name]!r} and {value!r})", option=name)
        options[name] = value
    return kind, options


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"target {text!r}: {error}") from error


def _parse_mapping(data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A dict in TVM's form or in ours -> (kind, options); what TVM filled in by itself is dropped again."""
    if "kind" not in data:
        raise UsageError(f"target dict has no 'kind'; got {sorted(map(str, data))}", hint="For example {'kind': 'opencl', 'device': 'host'}.")
    options = {str(k): v for k, v in data.items()}
    kind = _checked_kind(options.pop("kind"))
    keys = set(options.pop("keys", ()))
    if keys - _DEFAULT_TVM_KEYS - {options.get("device")}:
        raise UsageError(
            f"target keys {sorted(keys - _DEFAULT_TVM_KEYS)} choose schedules inside TVM, which Romou does not use",
            hint="Leave 'keys' out and name the device: {'kind': 'opencl', 'device': 'adreno640'}.",
        )
    if options.get("tag") == "":
        del options["tag"]
    if "host" in options:
        triple = _host_triple(options.pop("host"))
        if triple is not None:
            options["host"] = triple
    second_name = options.pop("max_threads_per_block", None)
    if second_name is not None:
        options["max_num_threads"] = min(second_name, options.get("max_num_threads", second_name))
    model = options.pop("model", None)
    if model is not None and model != _ATTACHED:
        options.setdefault("device", model)
    return kind, _without_implied_limits(kind, options, is_from_tvm=bool(keys), is_ours=model is not None)


def _without_implied_limits(kind: str, options: dict[str, Any], *, is_from_tvm: bool, is_ours: bool) -> dict[str, Any]:
    """Drop the limits that a tvm Target carries without the user's asking: TVM's defaults and those that `tvm_target` derived.

    In a hand-written dict every limit is the user's wish and stays.
    """
    if not is_from_tvm:
        return options
    import tvm.target

    # An architecture of its own, lest TVM looks for a device and warns that there is none; it is dropped only where a named device has it.
    implied = dict(tvm.target.Target({"kind": kind} | ({"arch": "sm_50"} if kind == "cuda" else {})).export())
    if is_ours:
        plain = Target({"kind": kind} | ({"device": options["device"]} if "device" in options else {}))
        implied |= plain._derived_limits() | ({"arch": plain.arch} if kind == "cuda" else {})
    return {k: v for k, v in options.items() if k not in (*LIMITS, "arch") or implied.get(k) != v}


def _host_triple(host: Any) -> str | None:
    """The LLVM triple of a host given as text, dict or tvm Target; None for this machine's own."""
    if host is None or host == "llvm":
        return None
    if isinstance(host, str):
        return host
    if not isinstance(host, Mapping):
        host = host.export()
    if host.get("kind") != "llvm":
        raise UsageError(f"the host target must be of kind 'llvm', got {host.get('kind')!r}")
    triple = host.get("mtriple")
    if triple is None:
        return None
    import tvm.target

    return None if triple == tvm.target.Target("llvm").export().get("mtriple") else str(triple)


def _checked_options(kind: str, options: Mapping[str, Any]) -> tuple[str | None, str | None, str | None, str | None, str | None, dict[str, int]]:
    """(device, host, use of halfs, CUDA architecture, use of TF32, limits), each checked."""
    for name in options:
        if name not in _OPTIONS[kind]:
            raise unknown_name("target option", name, _OPTIONS[kind])
    limits = {name: _positive(name, options[name]) for name in LIMITS if name in options}
    host = options.get("host")
    if host is not None and (not isinstance(host, str) or host.count("-") < 2 or not host.replace("-", "").replace("_", "").replace(".", "").isalnum()):
        raise UsageError(f"host {host!r} is not an LLVM triple", hint="For example aarch64-linux-android; leave it out for this machine.")
    half = options.get("half")
    if half is not None and half not in _HALF_USES:
        raise UsageError(f"target option -half={half}: must be {' or '.join(_HALF_USES)}", option="half", value=half)
    arch = options.get("arch")
    if arch is not None and not re.fullmatch(r"sm_\d{2,3}[af]?", str(arch)):
        raise UsageError(f"target option -arch={arch}: must be a CUDA architecture such as sm_80 or sm_90a", option="arch", value=arch)
    tf32 = options.get("tf32")
    if tf32 is not None and tf32 not in _TF32_USES:
        raise UsageError(f"target option -tf32={tf32}: must be {' or '.join(_TF32_USES)}, or left out", option="tf32", value=tf32)
    device = options.get("device")
    return (None if device is None else str(device)), host, half, arch, tf32, limits


def _positive(name: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number <= 0 or isinstance(value, bool):
        raise UsageError(f"target option -{name}={value}: must be a whole number above zero", option=name, value=value)
    return number
