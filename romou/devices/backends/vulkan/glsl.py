"""Lowered TIR as GLSL: a compute shader for each device function.

    data: T.handle("float32x4")
        ->  layout(std430, binding = 0) restrict readonly buffer Data { vec4 data[]; };
    acc[0] = mad((float4)(x), data[i], acc[0])
        ->  acc[0] = vec4(x) * data[i] + acc[0];

A parameter is declared once for each type that the kernel accesses it as (a view): floats, vectors of four, words of
two fp16 values. `_STATEMENTS` lists the statements that can be written. The head of the text is written last, because
it declares everything that the statements use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Call, PointerType, TensorLoad
from tvm_ffi.structural import structural_walk

from romou.devices.backends.dialect import MATRICES, SUB_GROUP_CALL
from romou.devices.backends.launch import dimension_comment, work_group
from romou.devices.backends.vulkan import matrices, sub_groups
from romou.devices.backends.vulkan.calls import extern_of, op_of, pointed
from romou.devices.backends.vulkan.expressions import LANES, Expressions, Parameter
from romou.devices.backends.vulkan.functions import definitions
from romou.devices.backends.vulkan.types import EXTENSIONS, Type, type_of
from romou.devices.backends.vulkan.unrolling import iterations_at_once

# Sides of a work group that glslang accepts and devices have.
MOST_SIDES = (1024, 1024, 64)
_SHARED = ("shared", "shared.dyn")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A device function for the runtime.

    arguments: each parameter in order, "buffer:r", "image:w:float16", "scalar:int32".
    types, launch: as in TVM's FunctionInfo.
    push_offsets: the offset of each scalar in the push constants, in bytes.
    needs: Vulkan features.
    """

    name: str
    text: str
    arguments: tuple[str, ...]
    types: tuple[str, ...]
    launch: tuple[str, ...]
    push_offsets: tuple[int, ...]
    shared_bytes: int
    local_size: tuple[int, int, int]
    needs: tuple[str, ...]


def write_kernel(func: tirx.PrimFunc) -> Kernel:
    """Write a lowered device function as a shader. BuildError for anything that GLSL lacks."""
    return _Writer(func).kernel()


class _Writer(Expressions):
    """The writer of one function."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        super().__init__(str(func.attrs["global_symbol"]))
        self.func = func
        self.shared: list[tuple[str, Type, int]] = []
        self.scalars: list[tuple[str, Type]] = []
        self.is_unrolled = False
        self.item = ""  # the variable with a work-item's number in its group, in kernels of subgroups
        self.sides = {f"threadIdx.{axis}": 1 for axis in "xyz"}

    def kernel(self) -> Kernel:
        for parameter in self.func.params:
            if isinstance(parameter.ty, PointerType):
                element, is_image = (
                    type_of(str(parameter.ty.element_type)),
                    "texture" in str(parameter.ty.storage_scope),
                )
                name = self.unique(str(parameter.name).removesuffix("_ptr"))
                self.parameters[parameter] = Parameter(
                    name=name, element=element, is_image=is_image, binding=len(self.parameters)
                )
            else:
                self.scalars.append((self.name(parameter), self.used(str(parameter.ty))))
        structural_walk(self.func.body, (tirx.DeclBuffer, self.declare))
        structural_walk(
            self.func.body, [(TensorLoad, self.note_load), (tirx.BufferStore, self.note_store), (Call, self.note_call)]
        )
        structural_walk(self.func.body, (tirx.AllocBuffer, self.note_matrices))
        self.block(self.func.body)
        x, y, z = self.sides.values()
        if any(side > most for side, most in zip((x, y, z), MOST_SIDES, strict=True)):
            self.fail(f"a work group of {(x, y, z)} work-items: {MOST_SIDES} are the most", "Choose another config.")
        return Kernel(
            name=self.kernel_name,
            text="\n".join(
                [*self.head((x, y, z)), dimension_comment(self.func) + "void main() {", *self.lines, "}", ""]
            ),
            arguments=tuple(map(self.argument, self.func.params)),
            types=tuple("handle" if p in self.parameters else str(p.ty) for p in self.func.params),
            launch=tuple(map(str, self.func.attrs["tirx.kernel_launch_params"])),
            push_offsets=tuple(self.offsets()),
            shared_bytes=sum(kind.register_bytes * count for _, kind, count in self.shared),
            local_size=(x, y, z),
            needs=tuple(self.needs),
        )

    # The head of the text

    def argument(self, parameter: tirx.Var) -> str:
        if parameter not in self.parameters:
            return f"scalar:{parameter.ty}"
        declared = self.parameters[parameter]
        access = ("r" if declared.is_read or not declared.is_written else "") + ("w" if declared.is_written else "")
        return f"image:{access}:{declared.element.base}" if declared.is_image else f"buffer:{access}"

    def offsets(self) -> Iterator[int]:
        end = 0
        for _, kind in self.scalars:
            size = kind.register_bytes
            start = -(-end // size) * size
            end = start + size
            yield start

    def head(self, local_size: Sequence[int]) -> Iterator[str]:
        extensions = [EXTENSIONS[need] for need in self.needs]
        if self.item:
            # In one row, because subgroups are full only along x.
            extensions += sub_groups.extensions(self.sub_groups) if self.sub_groups else matrices.EXTENSIONS
            local_size = (math.prod(local_size), 1, 1)
        if any(p.is_image and p.is_read for p in self.parameters.values()):
            extensions.append("GL_EXT_samplerless_texture_functions")
        if self.is_unrolled:
            extensions.append("GL_EXT_control_flow_attributes")
        yield "#version 450"
        yield from (f"#extension {extension} : require" for extension in extensions if extension)
        yield (
            f"layout({', '.join(f'local_size_{axis} = {side}' for axis, side in zip('xyz', local_size, strict=True))}) in;"  # noqa: E501
        )
        # A parameter and its buffers are one object.
        for parameter in {id(p): p for p in self.parameters.values()}.values():
            yield from self.image(parameter) if parameter.is_image else self.buffer(parameter)
        if self.scalars:
            yield (
                "layout(push_constant) uniform Scalars {"
                f" {' '.join(f'{kind.register} {name};' for name, kind in self.scalars)} }};"
            )
        yield from (f"shared {kind.register} {name}[{count}];" for name, kind, count in self.shared)
        yield definitions(self.calls)
        yield from sub_groups.definitions(self.sub_groups)

    def image(self, parameter: Parameter) -> Iterator[str]:
        if parameter.is_read:
            yield f"layout(binding = {parameter.binding}) uniform texture2DArray {parameter.name};"
        elif parameter.is_written:
            yield (
                f"layout(binding = {parameter.binding}, rgba{parameter.element.bits}f) uniform restrict writeonly"
                f" image2DArray {parameter.name};"
            )

    def buffer(self, parameter: Parameter) -> Iterator[str]:
        views = [(kind, name) for (binding, kind), name in self.views.items() if binding == parameter.binding]
        # Two views of one buffer alias.
        access = "restrict " if len(views) == 1 and "tirx.noalias" in self.func.attrs else ""
        access += (
            "" if parameter.is_read and parameter.is_written else "readonly " if parameter.is_read else "writeonly "
        )
        for kind, name in views:
            block = self.unique(name[0].upper() + name[1:])
            yield f"layout(std430, binding = {parameter.binding}) {access}buffer {block} {{ {kind} {name}[]; }};"

    # How parameters are accessed

    def declare(self, stmt: tirx.DeclBuffer) -> None:
        if stmt.data in self.parameters:
            self.parameters[stmt.buffer] = self.parameters[stmt.data]

    def note_load(self, access: TensorLoad) -> None:
        if access.source in self.parameters:
            self.parameters[access.source].is_read = True

    def note_store(self, access: tirx.BufferStore) -> None:
        if access.buffer in self.parameters:
            self.parameters[access.buffer].is_written = True

    def note_call(self, call: Call) -> None:
        if (of_sub_groups := SUB_GROUP_CALL.match(extern_of(call))) is not None:
            self.sub_groups.add((of_sub_groups[1], int(of_sub_groups[2])))
            self.number_items(sub_groups.ITEM)
            return
        is_half, is_texel = (
            extern_of(call).startswith(("vload_half", "vstore_half", "load_texel")),
            op_of(call).startswith("tirx.texture2d"),
        )
        if not is_half and not is_texel:
            return
        parameter = self.parameters.get(pointed(call.args[-1] if is_half else call.args[0])[0])
        if parameter is None:
            self.fail(f"{str(call)[:80]}, of what is no parameter")
        if op_of(call) in ("tirx.texture2d_store", "tirx.call_extern"):
            parameter.is_written = True
        else:
            parameter.is_read = True

    def note_matrices(self, stmt: tirx.AllocBuffer) -> None:
        if str(stmt.buffer.scope()) == MATRICES:
            self.needs.update(dict.fromkeys(matrices.NEEDS))
            self.number_items(matrices.ITEM)

    def number_items(self, text: str) -> None:
        """Compute the number of a work-item in its group from its subgroup."""
        if not self.item:
            self.item = self.unique("item")
            self.lines.append(f"  int {self.item} = {text};")

    # Statements

    def block(self, stmt: Any) -> None:
        self.depth += 1
        self.statement(stmt)
        self.depth -= 1

    def statement(self, stmt: Any) -> None:
        write = _STATEMENTS.get(type(stmt))
        if write is None:
            self.fail(f"the statement {type(stmt).__name__}")
        write(self, stmt)

    def sequence(self, stmt: tirx.SeqStmt) -> None:
        for child in stmt.seq:
            self.statement(child)

    def attribute(self, stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent":
            tag = str(stmt.node.thread_tag)
            builtin, axis = "gl_WorkGroupID" if tag.startswith("blockIdx") else "gl_LocalInvocationID", tag[-1]
            if tag in self.sides:
                if not isinstance(stmt.value, tirx.IntImm):
                    self.fail("a work group whose size is not constant")
                self.sides[tag] = int(stmt.value)
            elif not tag.startswith("blockIdx"):
                self.fail(f"the loop {tag}")
            if stmt.node.var not in self.names:
                text = self.place_in_group(axis) if self.item and tag in self.sides else f"int({builtin}.{axis})"
                self.line(f"int {self.name(stmt.node.var)} = {text};")
        self.statement(stmt.body)

    def place_in_group(self, axis: str) -> str:
        """Return the coordinate of a work-item along an axis of its group, by its number."""
        sides, number = work_group(self.func), "xyz".index(axis)
        before = math.prod(sides[:number])
        return f"{self.item}{f' / {before}' if before > 1 else ''} % {sides[number]}"

    def bind(self, stmt: tirx.Bind) -> None:
        kind, value = self.used(str(stmt.var.ty)), self.text(stmt.value)
        self.line(f"{kind.register} {self.name(stmt.var)} = {value};")

    def allocate(self, stmt: tirx.AllocBuffer) -> None:
        buffer, count = stmt.buffer, math.prod(int(extent) for extent in stmt.buffer.shape)
        name, kind, scope = self.name(buffer), self.used(str(buffer.dtype)), str(buffer.scope())
        if scope in _SHARED:
            self.shared.append((name, kind, count))
        elif scope == MATRICES:
            for text in matrices.declared(name, count):
                self.line(text)
        elif scope in ("local", "global"):
            # A variable of a work-item, under any of TVM's names for it.
            self.line(f"{kind.register} {name}{'' if count == 1 else f'[{count}]'};")
        else:
            self.fail(f"{scope} memory")
        # Shared memory of one number is an array too.
        self.arrays[buffer] = (f"{name}[0]" if scope in _SHARED and count == 1 else name, kind, count)

    def alias(self, stmt: tirx.DeclBuffer) -> None:
        if stmt.buffer in self.parameters:
            return
        name, kind, count = self.array(pointed(stmt.data)[0] if isinstance(stmt.data, Call) else stmt.data)
        if kind != type_of(str(stmt.buffer.dtype)):
            self.fail(f"one array ({name}) of two types")
        self.arrays[stmt.buffer] = name, kind, count

    def store(self, stmt: tirx.BufferStore) -> None:
        index, parameter = stmt.indices[0] if stmt.indices else tirx.const(0, "int32"), self.parameters.get(stmt.buffer)
        kind, text = self.used(str(stmt.value.ty)), self.text(stmt.value)
        if parameter is None:
            name, element, count = self.array(stmt.buffer)
            if count == 1:
                self.line(f"{name} = {text};")
                return
        else:
            element = type_of(str(stmt.buffer.dtype))
            whole = self.whole(index, parameter, element)
            element, index = (element, index) if whole is None else (kind, whole)
            name = self.view(parameter, element)
        written = (lambda text: text) if parameter is None else element.written
        lanes = type_of(str(index.ty)).lanes
        if lanes == 1:
            self.line(f"{name}[{self.index(index)}] = {written(text)};")
            return
        value = self.unique("stored")
        self.line(f"{kind.register} {value} = {text};")
        for lane in range(lanes):
            self.line(f"{name}[{self.lane(index, lane)}] = {written(f'{value}.{LANES[lane]}')};")

    def loop(self, stmt: tirx.For) -> None:
        kind, start, end = self.used(str(stmt.loop_var.ty)), stmt.min, self.analyzer.simplify(stmt.min + stmt.extent)
        first, last, at_once = (
            self.text(start),
            self.operand(end),
            1 if stmt.step is not None else iterations_at_once(stmt, self.parameters.__contains__),
        )
        name = self.name(stmt.loop_var)
        if at_once in (1, stmt.extent):
            step = "++" if stmt.step is None else f" += {self.text(stmt.step)}"
            self.line(
                f"{'[[unroll]] ' if at_once > 1 else ''}for ({kind.register} {name} = {first}; {name} < {last};"
                f" {name}{step}) {{"
            )
            self.block(stmt.body)
        else:
            begin, step = self.unique(f"{name}_start"), self.unique(f"{name}_step")
            self.line(f"for ({kind.register} {begin} = {first}; {begin} < {last}; {begin} += {at_once}) {{")
            self.depth += 1
            self.line(f"[[unroll]] for ({kind.register} {step} = 0; {step} < {at_once}; {step}++) {{")
            self.lines.append("  " * (self.depth + 1) + f"{kind.register} {name} = {begin} + {step};")
            self.block(stmt.body)
            self.line("}")
            self.depth -= 1
        self.is_unrolled |= at_once > 1
        self.line("}")

    def repeat(self, stmt: tirx.While) -> None:
        self.can_declare = False
        self.line(f"while ({self.text(stmt.condition)}) {{")
        self.can_declare = True
        self.block(stmt.body)
        self.line("}")

    def branch(self, stmt: tirx.IfThenElse) -> None:
        self.line(f"if ({self.text(stmt.condition)}) {{")
        self.block(stmt.then_case)
        if stmt.else_case is not None:
            self.line("} else {")
            self.block(stmt.else_case)
        self.line("}")

    def evaluate(self, stmt: tirx.Evaluate) -> None:
        call = stmt.value
        if not isinstance(call, Call):
            return
        if op_of(call) == "tirx.texture2d_store":
            self.store_texel(call)
        elif extern_of(call).startswith("vstore_half"):
            self.half_store(call)
        elif extern_of(call) in ("multiply_matrices", "store_matrix"):
            self.matrices(call)
        elif op_of(call) == "tirx.tvm_storage_sync":
            scope = str(call.args[0].value)
            if scope not in (*_SHARED, "warp"):
                self.fail(f"a barrier of {scope} memory")
            self.line("subgroupBarrier();" if scope == "warp" else "barrier();")
        else:
            self.line(f"{self.text(call)};")

    def matrices(self, call: Call) -> None:
        name, _, _ = self.array(pointed(call.args[1])[0])

        def at(first: int, count: int = 1) -> matrices.MatricesText:
            array, _, _ = self.array(pointed(call.args[first])[0])
            return matrices.MatricesText(
                array=array, start=self.index(call.args[first + 1]), stride=int(call.args[first + 2]), count=count
            )

        if extern_of(call) == "store_matrix":
            self.line(matrices.stored(name, int(call.args[2]), at(3)))
            return
        for text in matrices.multiplied(name, at(4, int(call.args[2])), at(7, int(call.args[3]))):
            self.line(text)

    def half_store(self, call: Call) -> None:
        value, offset, pointer = call.args[1:]
        buffer, base = pointed(pointer)
        parameter, lanes = self.parameters[buffer], type_of(str(value.ty)).lanes
        if base is None and lanes == 4 and not (parameter.is_read and parameter.is_written):
            self.line(
                f"{self.view(parameter, 'uvec2')}[{self.index(offset)}] ="
                f" {self.call('bits_of_half4', 4, self.text(value))};"
            )
            return
        name = self.view(parameter, Type("float16", 1))
        if lanes == 1:
            start = offset if base is None else base + offset
            self.line(f"{name}[{self.index(start)}] = float16_t({self.text(value)});")
            return
        stored = self.unique("stored")
        self.line(f"vec{lanes} {stored} = {self.text(value)};")
        for lane in range(lanes):
            start = self.analyzer.simplify((offset * lanes if base is None else base + offset * lanes) + lane)
            self.line(f"{name}[{self.index(start)}] = float16_t({stored}.{LANES[lane]});")

    def store_texel(self, call: Call) -> None:
        image, *at, _, value = call.args
        kind, text = type_of(str(value.ty)), self.text(value)
        coordinates = ", ".join(map(self.index, at))
        self.line(
            f"imageStore({self.parameters[pointed(image)[0]].name}, ivec3({coordinates}),"
            f" {text if kind.base == 'float32' else f'vec4({text})'});"
        )


_STATEMENTS: dict[type, Callable[[_Writer, Any], None]] = {
    tirx.SeqStmt: _Writer.sequence,
    tirx.AttrStmt: _Writer.attribute,
    tirx.Bind: _Writer.bind,
    tirx.AllocBuffer: _Writer.allocate,
    tirx.DeclBuffer: _Writer.alias,
    tirx.BufferStore: _Writer.store,
    tirx.For: _Writer.loop,
    tirx.While: _Writer.repeat,
    tirx.IfThenElse: _Writer.branch,
    tirx.Evaluate: _Writer.evaluate,
    tirx.Break: lambda self, stmt: self.line("break;"),
    tirx.Continue: lambda self, stmt: self.line("continue;"),
}
