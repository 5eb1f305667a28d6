"""Building of compiled functions into one library, each lowered separately, so that a failure names its function.

Lowered functions are cached, so building a model again only takes the time of its changed functions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.tirx.build import codegen_build, split_host_device_mods
from tvm_ffi.structural import structural_hash

import romou.compiler.pipeline as pipeline
from romou.base.errors import BuildError
from romou.compiler.assembly.constants import ScopedConstants
from romou.compiler.failures import Failures

if TYPE_CHECKING:
    from romou.devices.targets import Target

_ENTRY = "tirx.is_entry_func"
# Name -> variable, function and target
_Functions: TypeAlias = "dict[str, tuple[tvm.ir.GlobalVar, tirx.PrimFunc, Target]]"


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A function before code generation.

    host: the function that launches the kernels.
    device: target text -> target and kernels.
    """

    host: tvm.IRModule
    device: Mapping[str, tuple[tvm.target.Target, tvm.IRModule]]


@dataclass(frozen=True)
class Kept:
    """A cache of scheduled and lowered functions of a target. The keys hold everything that a function depends on."""

    scheduled: dict[Hashable, tirx.PrimFunc] = field(default_factory=dict)
    lowered: dict[Hashable, Lowered] = field(default_factory=dict)


def build_executable(
    scheduled: Sequence[tuple[tvm.IRModule, Target]], kept: Kept
) -> tuple[relax.VMExecutable, tvm.IRModule]:
    """Build scheduled modules into a program of TVM's virtual machine. Their graphs are already lowered to calls.

    Functions of one name are one function. The program holds constants of equal bytes once for each memory scope.

    scheduled: each module with its target. Targets differ in options of kernels only.

    Also return its host functions before code generation, see `host_library`.

    Raises
    ------
    BrokenFunctionsError
        Some functions cannot be lowered, or no code can be generated for them.
    """
    builder = relax.ExecBuilder()
    functions: _Functions = {}
    constants = ScopedConstants([module for module, _ in scheduled])
    for module, target in scheduled:
        rest = vm_build._vmcodegen(builder, constants.applied(module), "bytecode")
        for var, func in rest.functions_items():
            if isinstance(func, tirx.PrimFunc):
                functions.setdefault(str(var.name_hint), (var, func, target))
    constants.restore()
    lowered = _lowered(functions, kept)
    host = tvm.IRModule({var: func for each in lowered.values() for var, func in each.host.functions_items()})
    library = _library(lowered, host, target) if functions else None
    return relax.VMExecutable(vm_build._ffi_api.VMLink(builder, target.tvm_target, library, [], {})), host


def host_library(host: tvm.IRModule, target: Target, kernels: Sequence[tvm.runtime.Module]) -> tvm.runtime.Module:
    """Return code for the host of `target`, which launches `kernels`.

    host: the host functions of `build_executable`, which may have been lowered for another host.
    """
    # Host code that only launches kernels is not optimized, see `Target.tvm_target`.
    processor = target.tvm_target.host if target.backend.has_kernels else target.tvm_target
    functions = {var: func.with_attr("target", processor) for var, func in host.functions_items()}
    library = codegen_build(tvm.IRModule(functions, attrs=host.attrs), processor)
    for module in kernels:
        library.import_module(module)
    return library


def _lowered(functions: _Functions, kept: Kept) -> dict[str, Lowered]:
    failures, kernels = Failures(), {}
    for name, (var, func, target) in functions.items():
        tir_pipeline = pipeline.NAME if target.backend.has_kernels else "default"
        key = (name, structural_hash(func), str(target), tir_pipeline)
        if key not in kept.lowered:
            lowered = failures.attempt(
                name, f"the kernel {name}", partial(lower_function, var, func, target, tir_pipeline)
            )
            if lowered is None:
                continue
            kept.lowered[key] = lowered
        kernels[name] = kept.lowered[key]
    failures.check()
    return kernels


def lower_function(var: tvm.ir.GlobalVar, func: tirx.PrimFunc, target: Target, tir_pipeline: str) -> Lowered:
    """Lower a function as `tvm.tirx.build` lowers a module of one function."""
    lower, finish_host, finish_device = tirx.get_tir_pipeline(tir_pipeline)
    bound = tirx.transform.BindTarget(target.tvm_target)(tvm.IRModule({var: func}))
    host, devices = split_host_device_mods(lower(bound))
    # TVM marks the only function of a module as the entry of its library. A library of many functions may have only one
    # entry, so the mark is removed.
    plain = {v: f.without_attr(_ENTRY) if f.attrs and _ENTRY in f.attrs else f for v, f in host.functions_items()}
    host = pipeline.trusting(finish_host())(tvm.IRModule(plain, attrs=host.attrs))
    return Lowered(host=host, device={str(device): (device, finish_device()(mod)) for device, mod in devices.items()})


def _library(functions: Mapping[str, Lowered], host: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    devices: dict[str, tuple[tvm.target.Target, dict[tvm.ir.GlobalVar, tirx.PrimFunc]]] = {}
    for lowered in functions.values():
        for text, (device, mod) in lowered.device.items():
            devices.setdefault(text, (device, {}))[1].update(mod.functions_items())
    try:
        library = codegen_build(host, target.tvm_target.host)
        for device, kernels in devices.values():
            module = codegen_build(tvm.IRModule(kernels), device)
            library.import_module(module)
            _dump_sources(functions, module, target)
    except BuildError:
        raise
    except Exception:
        _name_broken(functions, target)
        raise
    return library


def _dump_sources(functions: Mapping[str, Lowered], module: tvm.runtime.Module, target: Target) -> None:
    for name, function in functions.items():
        kernels = {str(var.name_hint) for _, mod in function.device.values() for var in mod.get_global_vars()}

        def source(kernels: set[str] = kernels) -> str:
            texts = target.backend.split_kernels(module.inspect_source())
            return "\n".join(text for kernel, text in texts.items() if kernel in kernels)

        pipeline.dump_source(name, source)


def _name_broken(functions: Mapping[str, Lowered], target: Target) -> None:
    """Generate code for each function separately, and raise BrokenFunctionsError with the functions that fail."""
    failures = Failures()
    for name, lowered in functions.items():

        def generate(lowered: Lowered = lowered) -> None:
            codegen_build(lowered.host, target.tvm_target.host)
            for device, mod in lowered.device.values():
                codegen_build(mod, device)

        failures.attempt(name, f"the kernel {name}", generate)
    failures.check()
