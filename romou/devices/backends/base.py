"""Backend: the target options, limits, devices, kernel language, compiler and runtime of a device kind."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from romou.base.arguments import whole_of
from romou.base.errors import DeviceError, RomouError, UsageError
from romou.base.pages import page_of
from romou.base.variants import VARIANTS
from romou.devices.backends.programs import Programs, keeping
from romou.devices.backends.usable import LEFT_OUT, PROBE_TIMEOUT_S, DeviceReport, first_line, run_probe
from romou.devices.hardware import HardwareSpec, device_called, known_devices, load_device
from romou.devices.hardware.quirks import DriverRules, rules_for
from tvm_patches import runtime

if TYPE_CHECKING:
    import tvm.runtime

    from romou.devices.backends.dialect import Dialect
    from romou.devices.backends.reference_kernel import ReferenceKernel


class Connection(Protocol):
    """A device machine behind a connection: its packed functions, and the facts of its devices."""

    @property
    def session(self) -> Any: ...

    @property
    def devices(self) -> Sequence[Mapping[str, Any]]: ...


# Limits that the text of any target may set, by TVM's names. All are positive integers.
COMMON_LIMITS = ("max_num_threads", "max_shared_memory_per_block", "thread_warp_size")
# The largest size of a buffer or an image, a limit that TVM has no name for.
BUFFER_BYTES = "max_buffer_bytes"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetOption:
    """An option of a target's text.

    pattern: a regular expression for the whole value.
    error, hint: the message for a value that does not match, with {value} for the value.
    """

    name: str
    pattern: str
    error: str
    hint: str | None = None

    def checked(self, value: Any) -> str:
        """Return the value as text. UsageError if it does not match."""
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise UsageError(self.error.format(value=value), hint=self.hint, option=self.name, value=value)
        return value


DEVICE = TargetOption(name="device", pattern=".+", error="target option -device={value}: must be the name of a device")
WITHOUT = TargetOption(
    name="without",
    pattern=r"\w+:\w+(\+\w+:\w+)*",
    error="target option -without={value}: must be knobs and choices to leave out, as in multiply_add:fma+data:image",
)
HOST = TargetOption(
    name="host",
    # LLVM takes any text until code is generated, and then says nothing that helps.
    pattern=r"(x86_64|i[3-6]86|aarch64|arm64|arm\w*|thumb\w*|riscv(32|64)|powerpc64(le)?|ppc64(le)?|s390x|loongarch64|mips\w*)(-[\w.]*){2,}",
    error="host {value!r} is not an LLVM triple",
    hint="For example aarch64-linux-android; leave it out for this machine.",
)
IMAGES = TargetOption(
    name="images",
    pattern="prefer|weights|never|apart",
    error="target option -images={value}: must be prefer, weights, never or apart",
)
VARIANT = TargetOption(
    name="variant",
    pattern="|".join(VARIANTS),
    error="unknown variant {value!r}; known: " + ", ".join(VARIANTS),
    hint=f"{page_of('variants')} explains them.",
)
FACTS = TargetOption(name="facts", pattern="own|nearest", error="target option -facts={value}: must be own or nearest")


class CapturedRun(Protocol):
    """A run that the driver keeps and starts as a whole: a captured CUDA graph, a recorded command buffer.

    It reads and writes the memory that it was captured with, whatever the arguments of a later call are.
    what: the run's description for a person.
    """

    what: str

    def launch(self) -> None:
        """Start the run after everything that was enqueued before. Do not wait."""

    def time_ms(self) -> float:
        """Start the run, wait, and return its time on the device in milliseconds, from its first kernel to its last."""


class Backend:
    """A device kind. Its folder has a subclass, and an entry point names the one instance.

    name                the kind in target texts, records and messages
    title               the kind for a person
    language            the kernel language of `TunedModel.sources`, or "" without kernels
    source_suffix       suffix of a file with a kernel
    options             options of a target's text besides limits, in the order of a printed target
    limit_names         limits that a target's text may set, by TVM's names
    buffer_limit        the limit on a kernel's number of buffers, or "" for no limit
    default_limits      values of these limits for devices whose limits are unknown
    search_options      fields of `TuningOptions` with another default than usual
    measure_options     fields of `MeasureOptions` with another default than usual
    learns_from         another kind whose pretrained cost models this kind uses if it ships none
    trusts_nearest      whether an attached device's nearest one has its architecture. Searches then rank configs by the
                        facts of both
    is_launch_bound     whether the host takes longer for a launch than the device for a short kernel. Kernels are then
                        timed in captured runs, as models are launched
    device_variable     the environment variable that chooses among several devices, for hints
    has_kernels         False for a backend that runs the unscheduled reference on the host instead of kernels
    has_images          whether kernels can read and write images
    is_served           whether `romou serve` offers such devices over RPC
    is_vendors_own      whether it is the interface of one vendor to its own devices, which is the fastest there
    is_optional         whether a machine without such a device is complete
    """

    name: str
    title: str
    language: str = ""
    source_suffix: str = ""
    learns_from: str | None = None
    trusts_nearest: bool = False
    is_launch_bound: bool = False
    options: tuple[TargetOption, ...] = (DEVICE, HOST)
    limit_names: tuple[str, ...] = COMMON_LIMITS
    buffer_limit: str = ""
    default_limits: Mapping[str, int] = {"max_num_threads": 256, "max_shared_memory_per_block": 16384}
    search_options: Mapping[str, int] = {}
    measure_options: Mapping[str, float] = {}
    device_variable: str = ""
    has_kernels: bool = True
    has_images: bool = False
    is_served: bool = False
    is_vendors_own: bool = False
    is_optional: bool = True

    @property
    def tvm_kind(self) -> str:
        """TVM's target kind, which chooses its code generator."""
        return self.name

    @property
    def device_type(self) -> str:
        """TVM's name of the device type in `tvm.device`."""
        return self.name

    @cached_property
    def dialect(self) -> Dialect:
        """The kernel language's spelling of operations that TIR has no word for."""
        from romou.devices.backends.dialect import Dialect

        return Dialect()

    # Facts and limits

    def named_devices(self) -> tuple[str, ...]:
        """Return the names that `-device=` accepts."""
        return known_devices()

    def named_device(self, device_name: str) -> str:
        """Return the name of a device's file, given that name or the driver's name of the device.

        UsageError for a name that `-device=` does not accept.
        """
        return load_device(device_name).name

    def attached_spec(self) -> HardwareSpec:
        """Return the facts that the driver of the attached device states. DeviceError without a device."""
        raise NotImplementedError

    def device_of(self, facts: Mapping[str, Any]) -> str | None:
        """Return the name of an attached device's file, by the driver's name of it. None without a file, and for a CPU.

        facts: the device's entry of `list_devices`.
        """
        return None if facts["type"] == "cpu" else device_called(f"{facts['name']} {facts.get('version', '')}")

    def with_known_facts(self, asked: HardwareSpec, facts: Mapping[str, Any]) -> HardwareSpec:
        """Return a driver's facts (`asked`), completed with the facts of the device's file, if there is one.

        facts: the device's entry of `list_devices`.
        """
        name = self.device_of(facts)
        if name is None:
            return asked
        documented = load_device(name)
        return dataclasses.replace(asked, name=name, nearest=documented.nearest).filled_from(documented)

    def spec(self, device_name: str | None) -> HardwareSpec:
        """Return the facts of a named device, or of the attached one for None. DeviceError if none is attached."""
        return self.attached_spec() if device_name is None else load_device(device_name)

    def device_limits(self, spec: HardwareSpec) -> dict[str, int]:
        """Return the known limits of a device, by TVM's names."""
        limits = {
            "max_num_threads": spec.max_work_group_size,
            # With a larger number TVM leaves out barriers between work-items of a warp. OpenCL promises no lockstep,
            # drivers choose the warp size by kernel, and a CPU in place of the phone has none: the sums of such a
            # kernel are wrong there.
            "thread_warp_size": 1,
            "max_shared_memory_per_block": spec.local_mem_bytes,
        }
        return {name: value for name, value in limits.items() if value is not None}

    def abilities(self, spec: HardwareSpec, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `romou.base.limits.Limits` for arithmetic and instructions.

        Missing fields keep their default.
        """
        return {}

    def preset_name(self, spec: HardwareSpec) -> str | None:
        """Return the name of the preset that is fitted to this kind's compiler for a device.

        None for the preset of the device's family.
        """
        return None

    def narrower_options(
        self, limits: Mapping[str, int], abilities: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return target options that keep kernels for one device within the limits of another.

        limits, abilities: of the target, see `device_limits` and `abilities`.
        facts: the attached device's entry of `list_devices`.
        """
        allowed = self.allowed_limits(facts)
        return {name: limit for name, limit in allowed.items() if limit < limits[name]}

    def allowed_limits(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """Return the limits of an attached device, by TVM's names."""
        return {
            "max_num_threads": int(facts["max_work_group_size"]),
            "max_shared_memory_per_block": int(facts["local_mem_bytes"]),
        }

    def tvm_config(self, options: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
        """Return the target in TVM's form, without its host. options, limits: of a `Target`."""
        # TVM has two names for the largest work group; its passes read one or the other.
        both = {"max_threads_per_block": limits["max_num_threads"]} if "max_num_threads" in limits else {}
        return {
            "kind": self.tvm_kind,
            **{name: limit for name, limit in limits.items() if name != BUFFER_BYTES},
            **both,
        }

    @property
    def bare_tvm_config(self) -> dict[str, Any]:
        """Return the smallest config that TVM accepts for a target of this kind without looking for a device."""
        return {"kind": self.tvm_kind}

    # Devices

    def list_devices(self) -> list[dict[str, Any]]:
        """Return the facts of every attached device, in the order of `device(i)`. Empty without one.

        Each entry has at least name, platform, vendor, driver, type ("cpu" or "gpu"), compute_units,
        max_work_group_size, local_mem_bytes, has_images and extensions.
        """
        raise NotImplementedError

    def no_device_error(self, index: int, devices: list[dict[str, Any]]) -> DeviceError:
        """Return the error for a device index that does not exist, with a hint."""
        if devices:
            names = ", ".join(f"{i}: {facts['name']}" for i, facts in enumerate(devices))
            return DeviceError(
                f"there is no {self.title} device {index}; the runtime sees {names}",
                index=index,
                hint="`romou devices` lists them.",
            )
        return DeviceError(
            f"no {self.title} device is attached", index=index, hint="`romou doctor` says what is missing."
        )

    def diagnose(self) -> RomouError:
        """Return the reason why no device is attached, as far as this machine shows it, for `romou doctor`."""
        return self.no_device_error(0, [])

    def facts(self, index: int) -> dict[str, Any]:
        """Return the entry of `list_devices` for a device. DeviceError if it does not exist."""
        whole_of("device", index)
        devices = self.list_devices()
        if not 0 <= index < len(devices):
            raise self.no_device_error(index, devices)
        return devices[index]

    def identity(self, facts: Mapping[str, Any]) -> str:
        """Return a name of the hardware behind an entry of `list_devices`, as part of a file's name.

        Device kinds that report the hardware's UUID give the same name.
        """
        if facts["type"] == "cpu":
            return "cpu"
        uuid = str(facts.get("uuid", ""))
        # Some drivers answer with zeros.
        return re.sub(r"\W+", "-", uuid if uuid.strip("0") else f"{self.name} {facts['platform']} {facts['name']}")

    def device(self, index: int = 0) -> tvm.runtime.Device:
        """Return TVM's handle of a device."""
        return runtime.device(self.device_type, index)

    def device_index(self, device_name: str | None, devices: list[dict[str, Any]] | None = None) -> int:
        """Return the index of the device that a target runs on: the first one. DeviceError if none is attached.

        devices: the devices of another machine. None for this machine's.
        """
        if not (self.list_devices() if devices is None else devices):
            raise self.no_device_error(0, [])
        return 0

    def check_device(self, index: int, *, timeout_s: float = PROBE_TIMEOUT_S) -> DeviceReport:
        """Build and run tiny kernels on a device in a child process.

        Raises
        ------
        DeviceError
            There is no device with this index. The message has the number of devices and a hint.
        """
        facts = self.facts(index)
        lacks = self.lacks(facts)
        answers, crash = run_probe(self.name, index, timeout_s, without=lacks)
        problem = crash or answers.get("buffers")
        limits = [
            f"{LEFT_OUT[aspect]} ({first_line(text)})"
            for aspect, text in answers.items()
            if text and aspect in LEFT_OUT
        ]
        return DeviceReport(
            index=index,
            device=str(facts["name"]),
            platform=str(facts["platform"]),
            driver=str(facts["driver"]),
            origin=self.origin(facts),
            is_usable=problem is None,
            has_images=problem is None and bool(facts["has_images"]) and answers.get("images") is None,
            has_fp16=problem is None and "fp16" not in lacks and answers.get("fp16") is None,
            has_recorded_runs=problem is None and self.can_record(facts),
            problem=problem,
            hint=self._repair(facts) if problem else None,
            notes=tuple(dict.fromkeys(lacks.values())) if problem is None else (),
            limits=tuple(limits) if problem is None else (),
        )

    def origin(self, facts: Mapping[str, Any]) -> str | None:
        """Return the origin of a device's driver for a person: the system, or a package with its version.

        None if unknown.
        """
        return None

    def is_usable(self, index: int = 0) -> bool:
        """Return whether device `index` exists and computed a tiny kernel correctly. See `check_device`."""
        try:
            return self.check_device(index).is_usable
        except DeviceError:
            return False

    def check_usable(self, index: int) -> None:
        """Raise DeviceError unless device `index` computes a tiny kernel correctly. See `check_device`."""
        report = self.check_device(index)
        if not report.is_usable:
            raise DeviceError(f"{report.device} does not work: {report.problem}", hint=report.hint)

    def lacks(self, facts: Mapping[str, Any]) -> dict[str, str]:
        """Return the aspects of `romou.devices.backends.probe` that the driver does not support.

        Each comes with a line for a person.
        """
        return {}

    def _repair(self, facts: Mapping[str, Any]) -> str:
        choose = f", or choose another device with {self.device_variable}" if self.device_variable else ""
        return f"Update or reinstall the vendor's driver{choose}."

    def manifest_line(self, library: str) -> str | None:
        """Return the line of an Android app's manifest that allows the app to open a driver's library.

        None if no app needs one.
        """
        return None

    # Compiler and runtime

    def toolchain(self) -> tuple[str, Callable[[], str]] | None:
        """Return (name, version call) of a compiler that Romou needs for kernels.

        None without one. The call raises RomouError if the compiler is missing.
        """
        return None

    def split_kernels(self, source: str) -> dict[str, str]:
        """Return name -> text of each kernel in the text of a module. Each text compiles without the others."""
        return {}

    def needs_fp16(self, source: str) -> bool:
        """Return whether a module's source compiles only for a device that computes in fp16."""
        return False

    def prepare_to_load(self) -> None:
        """Make this process ready for a compiled library. DeviceError if that is impossible."""

    def can_record(self, facts: Mapping[str, Any]) -> bool:
        """Return whether `record` works on a device."""
        return False

    def record(self, device: tvm.runtime.Device, vm: Any, run: Callable[[], None]) -> CapturedRun:
        """Record the launches that a virtual machine enqueues during `run`. Nothing is computed.

        Raises
        ------
        DeviceError
            The device cannot record, or cannot record this run. The message has the reason.
        RuntimeError
            TVM failed during the run.

        device: a device of this machine. Everything that `vm` launches goes to it.
        run: has run before, so that kernels are loaded and memory has its size.
        """
        raise DeviceError(f"{self.name} devices record no runs")

    def compile_kernels(self, module: tvm.runtime.Module, index: int) -> bool:
        """Let the driver compile the kernels of a module now.

        Return False if it only compiles them at their first launch.
        """
        compiler = runtime.global_function(self.function("compile"), allow_missing=True)
        if compiler is not None:
            compiler(module, index)
        return compiler is not None

    def set_rules(self, facts: Mapping[str, Any], index: int, find: Callable[[str], Any]) -> DriverRules:
        """Set the workarounds for a device's quirks in the runtime that `find` has functions of, and return them."""
        rules = rules_for(facts)
        if rules.profiling_queue_above_bytes is not None:
            find(self.function("profile_above"))(index, rules.profiling_queue_above_bytes)
        if rules.build_options:
            find(self.function("set_build_options"))(index, rules.build_options)
        return rules

    def programs(self, library: Any, index: int, connection: Connection | None = None) -> Programs | None:
        """Return the programs of a model on a device. None if the device's facts lack `keeps_programs`.

        A runtime with `keeps_programs` has the functions "prepare", "keep" and "program_folder".

        library: TVM's executable or module, or the connection's.
        connection: to the device's machine. None for this machine.
        """
        devices = self.list_devices() if connection is None else connection.devices
        # A backend on top of another one's runtime may list no devices.
        if index >= len(devices) or not devices[index].get("keeps_programs"):
            return None
        facts = devices[index]
        find = runtime.global_function if connection is None else connection.session.get_function
        prepare, keep, folder = (find(self.function(name)) for name in ("prepare", "keep", "program_folder"))
        rules = self.set_rules(facts, index, find)
        threads = 0 if self.compiles_in_parallel(facts) and not rules.compiles_in_order else 1
        how: dict[str, Any] = {"prepare": prepare, "keep": keep, "folder": folder, "threads": threads}
        if connection is None:
            how |= {
                name: runtime.global_function(self.function(name), allow_missing=True)
                for name in ("missing", "module_bytes", *["compile_as_one"] * rules.compiles_as_one)
            }
        is_kept, crashes = not rules.keeps_no_programs, rules.compiles_apart
        return Programs(getattr(library, "mod", library), index, is_kept=is_kept, crashes=crashes, **how)

    def keeping_programs(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for building or loading a model that keeps compiled programs for the next time.

        See `programs` for drivers that compile later.
        """
        return keeping()

    def drop_weights(self, executable: Any) -> None:
        """Free the host's copy of an executable's weights, after its virtual machine has started.

        No other virtual machine can be started from the executable. Kinds without support in the runtime keep the copy.
        """

    def compiles_in_parallel(self, facts: Mapping[str, Any]) -> bool:
        """Return whether several threads may call the driver's compiler, and gain by it."""
        return False

    def hold_clocks(self, index: int) -> None:
        """Keep an attached device at its working clocks until this process ends.

        It applies to a device with a driver that lowers its clocks between timed launches.
        """

    # Over RPC

    def function(self, name: str) -> str:
        """Return the name of a packed function of the kind's runtime.

        name: "devices" (JSON of `list_devices`), "compile", "record", "source_kernel" or "prepare".
        """
        return f"romou.{self.name}.{name}"

    def reference_kernel(self, session: Any, index: int, facts: Mapping[str, Any]) -> ReferenceKernel:
        """Return the reference kernel on a server's device. DeviceError if the device computes wrong results."""
        raise DeviceError(f"{self.name} devices have no reference kernel")
