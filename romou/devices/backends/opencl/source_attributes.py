"""Additions to the OpenCL C of TVM's code generator, for facts that drivers' compilers cannot infer.

The work group of each kernel. Without it, a compiler reserves registers for the largest work group of the
device. Mesa's compiler for Adreno then runs fewer waves at a time.

    __kernel void conv(...)      ->      __kernel __attribute__((reqd_work_group_size(16, 4, 1))) void conv(...)

Images without reads outside, and images of one layer: weights, matrices, a picture of three colors. A read of an array
also passes the layer, which costs registers and instructions. A read with a sampler takes floats, into which compilers
convert coordinates.

    __read_only image2d_array_t weight              in scope "global.texture-2d" or "global.texture-rows[-joined]"
        ->  __read_only image2d_t weight
    write_imagef(output, (int4)(x, y, 0, 0), texel)
        ->  WRITE_PLAIN_IMAGEF(...), which is write_imagef(output, (int2)(x, y), texel)
    READ_IMAGEF(weight, image_sampler, (int4)(x, y, 0, 0))
        ->  READ_PLAIN_IMAGEF(...), which is read_imagef(weight, (int2)(x, y))
    as_uint4(READ_IMAGEF(words, image_sampler, (int4)(x, y, 0, 0)))      in the same scopes, of uint32
        ->  as_uint4(READ_WORD_IMAGE(...)), which is read_imageui(words, (int2)(x, y))
    READ_IMAGEF(data, image_sampler, (int4)(x, y, z, 0))          in scope "global.texture-inside"
        ->  READ_INSIDE_IMAGEF(...), which is read_imagef(data, (int4)(x, y, z, 0))
    READ_IMAGEF(data, image_sampler, (int4)(x, y, 0, 0))          in scope "global.texture-slice", an image2d_t
        ->  READ_SLICE_IMAGEF(...), which is read_imagef(data, image_sampler, (int2)(x, y))

The number of a work-item in kernels with functions of sub-groups, and their size (`sub_groups.py`).

The width of waves and uniform loads, for Qualcomm's compiler (`waves.py`).

Pointers, which TIR cannot express (`passes/advancing_pointers.py`).

    float4* at = POINTER(x, i)      ->      const __global float4* at = x + i
    ADVANCE(at, 128)                ->      at += 128

Loops that a compiler would unroll, and load ahead for all iterations.

    KEEP_LOOP();                            KEPT_LOOP
    for (int k = 0; k < 24; ++k)    ->      for (int k = LOOP_START; k < 24; ++k)

The names of a kernel's dimensions, as a comment above its definition (`romou.compiler.passes.kernel_attributes`).

Conversions of fp16 in memory (`fp16_accesses.py`), and rounding to whole numbers (`rounding.py`).

Vectors that may be unaligned (`unaligned_vectors.py`). They change before TVM writes the kernel.

Variables instead of private arrays (`named_registers.py`).

The alignment of arrays that hold another type later on, as TVM reuses memory. Compilers align an array as its own type.

    __local float partial[128];         if there is (__local long*)partial
        ->  __local float partial[128] __attribute__((aligned(64)));
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from romou.base.errors import BuildError
from romou.devices.backends.launch import (
    INSIDE_IMAGE,
    PLAIN_IMAGE,
    ROW_AXES,
    SLICE_IMAGE,
    WAVE_KIND,
    dimension_comment,
    work_group,
)
from romou.devices.backends.opencl import (
    dot_products,
    fp16_accesses,
    ptx_functions,
    rounding,
    sub_groups,
    waves,
    word_accesses,
)
from romou.devices.backends.opencl.functions import definitions
from romou.devices.backends.opencl.named_registers import named
from romou.devices.backends.opencl.unaligned_vectors import access_unaligned

# The size of a pointer or an image; a number needs no more.
ARGUMENT_BYTES = 8
# The declaration of a pointer, which TVM writes without the address space, and the statement that advances it.
_POINTERS = (
    (re.compile(r"\b(\w+)\* (\w+) = \(\1\*\)\(\(\1\*\)POINTER\((\w+), (.*)\)\);"), r"const __global \1* \2 = \3 + \4;"),
    (re.compile(r"\bADVANCE\((\w+), (-?\d+)\);"), r"\1 += \2;"),
    (re.compile(r"\bKEEP_LOOP\(\);(\s*for \(int \w+ =) 0;"), r"KEPT_LOOP\1 LOOP_START;"),
)
# The counter starts at a zero that a compiler does not know. Mesa's compilers ignore the hint, which others obey.
_KEPT = """#ifdef UNROLL_HINT
#define KEPT_LOOP __attribute__((opencl_unroll_hint(1)))
#define LOOP_START 0
#else
#define KEPT_LOOP
#define LOOP_START get_group_id(2)
#endif
"""
# A pointer to memory as another type, or to what is copied or read by 16 bytes, and the declaration of an array.
_CAST = re.compile(
    r"\((?:__local )?\w+\*\)\(?(\w+)\b"
    r"|\b(?:copy_unit_async|load_activations|load_transposed)\([^;]*?, (\w+_ptr),"
    r"|\bload_staged_\w+\([^;]*?, (\w+_ptr)\)"
)
_ARRAY = re.compile(r"^(\s*(?:__local )?\w+ (\w+)\[\d+\]);", re.MULTILINE)
# The largest vectors of kernels: eight lanes of eight bytes.
_LARGEST_BYTES = 64
# Scope -> the name of its reads, and their coordinates.
_PLAIN = "READ_PLAIN_IMAGE", "(coord).xy"
_READS = {
    **dict.fromkeys((PLAIN_IMAGE, *ROW_AXES), _PLAIN),
    INSIDE_IMAGE: ("READ_INSIDE_IMAGE", "coord"),
    SLICE_IMAGE: ("READ_SLICE_IMAGE", "sampler, (coord).xy"),
}
# Reads of texels of uint32.
_WORD_READ = "READ_WORD_IMAGE"


@functools.cache
def install() -> None:
    """Make TVM build OpenCL modules with the additions at the top of this file.

    The modules also contain the functions that their kernels call.
    """
    import tvm
    import tvm_ffi

    generate = tvm.get_global_func("target.build.opencl")
    create = tvm.get_global_func("ffi.Module.create.opencl", allow_missing=True)
    if create is None:
        return  # Romou's runtime could not be loaded, which `romou doctor` and the first use of a device report.

    def build(mod: tvm.IRModule, target: Any) -> Any:
        # One function after the other: TVM declares all of a module's kernels before each of them, which takes most of
        # its time if there are hundreds.
        pieces: list[tuple[bytes, Any, Mapping[str, Any], Mapping[str, str]]] = []
        _building.pieces = pieces
        try:
            for var, func in sorted(mod.functions_items(), key=lambda item: str(item[1].attrs["global_symbol"])):
                name = str(func.attrs["global_symbol"])
                _check_arguments(name, func, target)
                _building.kernels = {name: _kernel_of(func)}
                generate(tvm.IRModule({var: access_unaligned(func)}, attrs=mod.attrs), target)
        finally:
            _building.kernels, _building.pieces = {}, None
        data, text_formats, functions, texts = zip(*pieces, strict=True)
        merged = ({key: value for piece in part for key, value in piece.items()} for part in (functions, texts))
        return create(b"".join(data), text_formats[0], *merged)

    def create_extended(data: Any, text_format: Any, functions: Any, texts: Any) -> Any:
        # Both texts are mostly one.
        extend = functools.cache(functools.partial(_extended_module, kernels=_building.kernels))
        extended = {str(key): extend(str(text)) for key, text in texts.items()}
        code = extend(bytes(data).decode()).encode()
        if _building.pieces is not None:
            _building.pieces.append(
                (code, text_format, {str(key): value for key, value in functions.items()}, extended)
            )
        return create(code, text_format, functions, extended)

    # The error keeps its type when it passes through TVM.
    tvm_ffi.register_error(BuildError.__name__, BuildError)
    tvm_ffi.register_global_func("target.build.opencl", build, override=True)
    tvm_ffi.register_global_func("ffi.Module.create.opencl", create_extended, override=True)


def _check_arguments(name: str, func: Any, target: Any) -> None:
    """Raise BuildError for a kernel with more arguments than the device accepts (CL_DEVICE_MAX_PARAMETER_SIZE)."""
    limit = target.attrs.get("max_function_args", None)
    if limit is not None and len(func.params) > int(limit):
        text = (
            f"kernel {name} takes {len(func.params)} arguments, {len(func.params) * ARGUMENT_BYTES} bytes; the device"
            f" takes {limit}"
        )
        hint = "Raise -max_function_args where the device takes more: CL_DEVICE_MAX_PARAMETER_SIZE is in bytes."
        raise BuildError(text, hint=hint, kernel=name, limit=int(limit))


@dataclass(frozen=True)
class _Kernel:
    """A kernel's additions.

    work_group: the sides of its work group.
    images: position -> scope, for image parameters read without a sampler.
    words: positions of those whose texels are of uint32.
    comment: names of its dimensions, above the definition.
    wave: what it says of waves (`waves.py`), "" for nothing.
    """

    work_group: tuple[int, int, int]
    images: Mapping[int, str]
    words: frozenset[int]
    comment: str
    wave: str


class _Building(threading.local):
    """The kernels that TVM's code generator is writing in this thread.

    kernels: by their names.
    pieces: the finished parts of a module. None outside of `build`.
    """

    kernels: Mapping[str, _Kernel] = MappingProxyType({})
    pieces: list[Any] | None = None


_building = _Building()


def _kernel_of(func: Any) -> _Kernel:
    scopes = (
        (position, str(getattr(parameter.ty, "storage_scope", ""))) for position, parameter in enumerate(func.params)
    )
    images = {position: scope for position, scope in scopes if scope in _READS}
    words = frozenset(at for at in images if str(func.params[at].ty.element_type).startswith("uint32"))
    wave = str(func.attrs[WAVE_KIND]) if func.attrs and WAVE_KIND in func.attrs else ""
    return _Kernel(work_group(func), images, words, dimension_comment(func), wave)


def _extended_module(source: str, kernels: Mapping[str, _Kernel]) -> str:
    """Return a module's text with the additions.

    Each kernel follows its own marker, and the runtime compiles it separately.
    """
    return "".join(
        _extended_section(section, kernels) for section in re.split(r"(?=^// Function: )", source, flags=re.MULTILINE)
    )


def _extended_section(source: str, kernels: Mapping[str, _Kernel]) -> str:
    before, *texts = re.split(r"(?=^__kernel void )", source, flags=re.MULTILINE)
    extended = waves.with_uniform_buffers([_extended_kernel(text, kernels) for text in texts])
    reads = [read for read in dict.fromkeys(_READS.values()) if any(read[0] in text for text in extended)]
    defined = [
        f"#define {name}{t}(image, sampler, coord) read_image{t.lower()}(image, {coordinate})\n"
        for name, coordinate in reads
        for t in "HF"
    ]
    if any("KEPT_LOOP\n" in text for text in extended):
        defined.append(_KEPT)
    if any(_WORD_READ in text for text in extended):
        defined.append(f"#define {_WORD_READ}(image, sampler, coord) read_imageui(image, (coord).xy)\n")
    if any("WRITE_PLAIN_IMAGE" in text for text in extended):
        defined += [
            f"#define WRITE_PLAIN_IMAGE{t}(image, coord, texel) write_image{t.lower()}(image, (coord).xy, texel)\n"
            for t in "HF"
        ]
    own = "".join(
        part(extended)
        for part in (
            definitions,
            sub_groups.definitions,
            waves.definitions,
            dot_products.definitions,
            fp16_accesses.definitions,
            rounding.definitions,
            word_accesses.definitions,
            ptx_functions.definitions,
        )
    )
    return before + own + "".join(defined) + "".join(extended)


def _extended_kernel(text: str, kernels: Mapping[str, _Kernel]) -> str:
    """Return the text of one kernel, its declaration or definition, with the additions."""
    head = re.match(r"__kernel void (\w+)\(([^()]*)\)", text)
    if head is None or head[1] not in kernels:
        return text
    kernel, declared, body = kernels[head[1]], head[2].split(", "), text[head.end() :]
    for position, scope in kernel.images.items():
        if scope != INSIDE_IMAGE:
            declared[position] = declared[position].replace("image2d_array_t", "image2d_t")
            body = re.sub(
                rf"\bwrite_image([hf])(\({declared[position].split()[-1]},)",
                lambda match: f"WRITE_PLAIN_IMAGE{match[1].upper()}{match[2]}",
                body,
            )
        read = _WORD_READ if position in kernel.words else rf"{_READS[scope][0]}\1"
        body = re.sub(rf"\bREAD_IMAGE([HF])(\({declared[position].split()[-1]},)", rf"{read}\2", body)
    for pattern, text_of in _POINTERS:
        body = pattern.sub(text_of, body)
    body = named(rounding.renamed(fp16_accesses.renamed(_aligned(body))))
    size = ""
    if (sub_group := sub_groups.size_of(body)) is not None:
        body, size = sub_groups.numbered_by_sub_groups(body), f" {sub_groups.attribute_name(sub_group)}"
    sides = ", ".join(map(str, kernel.work_group))
    comment = "" if body.startswith(";") else kernel.comment
    attributes = f"__attribute__((reqd_work_group_size({sides}))){waves.attribute(kernel.wave)}{size}"
    return f"{comment}__kernel {attributes} void {head[1]}({', '.join(declared)}){body}"


def _aligned(body: str) -> str:
    """Align the arrays of a kernel that are accessed as another type."""
    cast = {name for names in _CAST.findall(body) for name in names}
    attribute = f" __attribute__((aligned({_LARGEST_BYTES})))"
    return _ARRAY.sub(lambda array: f"{array[1]}{attribute if array[2] in cast else ''};", body)
