"""Expressions of lowered TIR as GLSL. `_EXPRESSIONS` and `_CALLS` list the supported ones. Others are a BuildError."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm_ffi.structural import structural_map

from romou.devices.backends.dialect import DOT_CALL, SUB_GROUP_CALL
from romou.devices.backends.vulkan.branches import is_harmless, is_simple, loaded_anyway, terms_of
from romou.devices.backends.vulkan.calls import extern_of, op_of, pointed
from romou.devices.backends.vulkan.functions import BUILT_IN, DEFINITIONS
from romou.devices.backends.vulkan.text import Text, closed
from romou.devices.backends.vulkan.types import MOST_LANES, Type, type_of

LANES = "xyzw"
_INFIX = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.Div: "/", tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">", tirx.GE: ">=", tirx.EQ: "==", tirx.NE: "!=",  # noqa: E501
    tirx.And: "&&", tirx.Or: "||", tirx.BitwiseAnd: "&", tirx.BitwiseOr: "|", tirx.BitwiseXor: "^", tirx.LShift: "<<", tirx.RShift: ">>",  # noqa: E501
}  # fmt: skip
# GLSL has no bitwise operators for truth values.
_OF_TRUTH = {tirx.BitwiseAnd: "&&", tirx.BitwiseOr: "||", tirx.BitwiseXor: "^^"}
_OF_VECTORS = {
    tirx.LT: "lessThan", tirx.LE: "lessThanEqual", tirx.GT: "greaterThan", tirx.GE: "greaterThanEqual", tirx.EQ: "equal", tirx.NE: "notEqual",  # noqa: E501
}  # fmt: skip
_SUFFIX = {"float16": "hf", "float64": "lf", "int64": "L", "uint8": "u", "uint16": "u", "uint32": "u", "uint64": "UL"}
_BITS = {
    ("float32", "int32"): "floatBitsToInt", ("float32", "uint32"): "floatBitsToUint",
    ("int32", "float32"): "intBitsToFloat", ("uint32", "float32"): "uintBitsToFloat",
    ("float64", "int64"): "doubleBitsToInt64", ("int64", "float64"): "int64BitsToDouble",
}  # fmt: skip
_BITS_OF_PAIRS = {("uint32", "float16x2"): "unpackFloat2x16", ("float16x2", "uint32"): "packFloat2x16"}
# Functions of GLSL that take no fp64.
_OF_FLOATS = ("exp", "exp2", "log2")
_INFINITY, _NAN = "uintBitsToFloat(0x7F800000u)", "uintBitsToFloat(0x7FC00000u)"
# Types that `mix` selects by truth values in every version of GLSL with them.
_MIXED = ("float32", "float16", "int32", "uint32")
_ADDITIVE, _PRODUCTS = (tirx.Add, tirx.Sub), (tirx.Mul, tirx.Div)
# A sum with a constant this large rounds the other term on purpose: round(x) = (x + 3 * 2**22) - 3 * 2**22.
_ROUNDING = 2.0**12


@dataclass(kw_only=True)
class Parameter:
    """A pointer among a kernel's parameters. element: the declared type of its elements."""

    name: str
    element: Type
    is_image: bool
    binding: int
    is_read: bool = False
    is_written: bool = False


class Expressions(Text):
    """The writer of one kernel's expressions, and the features that they use."""

    def __init__(self, kernel_name: str) -> None:
        super().__init__(kernel_name)
        # (function of DEFINITIONS, lanes of its arguments), and Vulkan features, in order of first use.
        self.calls: set[tuple[str, int]] = set()
        self.needs: dict[str, None] = {}
        # (operation of subgroups, size that it assumes)
        self.sub_groups: set[tuple[str, int]] = set()
        # Buffer -> (name, type of its elements, number of elements)
        self.arrays: dict[Any, tuple[str, Type, int]] = {}
        self.parameters: dict[Any, Parameter] = {}
        # (binding, type of the elements) -> name
        self.views: dict[tuple[int, str], str] = {}
        self.analyzer = tvm.sym.Analyzer()
        # Whether a line in front of the statement may declare a common subexpression of it.
        self.can_declare = True

    # Types

    def used(self, dtype: str) -> Type:
        """Return the type of a variable or expression, and note the features that it needs."""
        kind = type_of(dtype)
        if (need := kind.needs()) is not None:
            self.needs.setdefault(need)
        return kind

    def view(self, parameter: Parameter, kind: Type | str) -> str:
        """Return the name of a parameter's view with elements of a type."""
        if isinstance(kind, Type):
            if (need := kind.needs(is_stored=True)) is not None:
                self.needs.setdefault(need)
            # 64-bit memory needs 64-bit arithmetic.
            kind = kind.stored
        if (
            parameter.is_read
            and parameter.is_written
            and any(binding == parameter.binding and other != kind for binding, other in self.views)
        ):
            self.fail(f"a buffer ({parameter.name}) that is read and written as two types")
        key = (parameter.binding, kind)
        if key not in self.views:
            self.views[key] = (
                parameter.name
                if all(binding != parameter.binding for binding, _ in self.views)
                else self.unique(f"{parameter.name}_{kind}")
            )
        return self.views[key]

    def call(self, name: str, lanes: int, *arguments: str) -> str:
        """Return a call of a function of DEFINITIONS."""
        self.calls.add((name, lanes))
        return f"{name}({', '.join(arguments)})"

    # Expressions

    def text(self, expr: Any) -> str:
        write = _EXPRESSIONS.get(type(expr))
        if write is None:
            self.fail(f"the expression {type(expr).__name__} ({str(expr)[:80]})")
        return write(self, expr)

    def operand(self, expr: Any) -> str:
        return closed(self.text(expr))

    def index(self, expr: Any) -> str:
        return self.text(expr) if str(expr.ty) == "int32" else f"int({self.text(expr)})"

    def lane(self, expr: Any, lane: int) -> str:
        """Return one lane of a vector of indices."""
        if isinstance(expr, tirx.Ramp):
            return self.index(self.analyzer.simplify(expr.base + expr.stride * lane))
        if isinstance(expr, tirx.Broadcast):
            return self.index(expr.value)
        return f"int({self.operand(expr)}.{LANES[lane]})"

    def number(self, value: tirx.IntImm | tirx.FloatImm) -> str:
        kind = self.used(str(value.ty))
        if kind.base == "bool":
            return "true" if value.value else "false"
        if isinstance(value, tirx.IntImm):
            if value.value == -(2 ** (kind.bits - 1)) and kind.bits >= 32:
                return f"({value.value + 1}{_SUFFIX.get(kind.base, '')} - 1)"
            return f"{value.value}{_SUFFIX.get(kind.base, '')}"
        number = float(value.value)
        if math.isfinite(number):
            short = (
                repr(number)
                if kind.base == "float64"
                else str(np.float32(number) if kind.base == "float32" else np.float16(number))
            )
            if not math.isfinite(float(short)):
                short = str(np.finfo(kind.base).max * math.copysign(1, number))
            return (short if "." in short or "e" in short else f"{short}.0") + _SUFFIX.get(kind.base, "")
        special = _NAN if math.isnan(number) else _INFINITY if number > 0 else f"-{_INFINITY}"
        return special if kind.base == "float32" else f"{kind.register}({special})"

    def infix(self, expr: Any) -> str:
        kind, operands = self.used(str(expr.ty)), self.used(str(expr.a.ty))
        operator = _INFIX[type(expr)]
        if kind.lanes > 1 and type(expr) in _OF_VECTORS:
            return f"{_OF_VECTORS[type(expr)]}({self.text(expr.a)}, {self.text(expr.b)})"
        if kind.lanes > 1 and kind.base == "bool":
            # Vectors of truth values have no operators.
            return (
                f"{kind.register}(uvec{kind.lanes}({self.text(expr.a)}) {operator[0]}"
                f" uvec{kind.lanes}({self.text(expr.b)}))"
            )
        if operands.base == "bool":
            operator = _OF_TRUTH.get(type(expr), operator)
        # Each operand is written once: written twice at each term, a long sum would grow exponentially.
        a, b = self.text(expr.a), self.text(expr.b)
        if kind.base == "float32" and type(expr) in _ADDITIVE and (_is_large(expr.a) or _is_large(expr.b)):
            return self.call("rounded_sum", kind.lanes, a, b if isinstance(expr, tirx.Add) else f"-({b})")
        is_sum = type(expr) in _ADDITIVE
        a = a if is_sum and isinstance(expr.a, _ADDITIVE + _PRODUCTS) else closed(a)
        b = b if is_sum and isinstance(expr.b, _PRODUCTS) else closed(b)
        if operands.base == "bool" and type(expr) in (tirx.LT, tirx.LE, tirx.GT, tirx.GE):
            a, b = f"uint({a})", f"uint({b})"
        return self.narrowed(kind, f"{a} {operator} {b}")

    def narrowed(self, kind: Type, text: str) -> str:
        """Return a result truncated to 8 or 16 bits."""
        return f"bitfieldExtract({text}, 0, {kind.bits})" if kind.is_narrow else text

    def remainder(self, expr: tirx.Mod) -> str:
        kind = self.used(str(expr.ty))
        if kind.base == "float64":
            self.fail("the remainder of fp64")
        if kind.is_float:
            return self.call("fmod", kind.lanes, self.text(expr.a), self.text(expr.b))
        a, b = self.operand(expr.a), self.operand(expr.b)
        if kind.base in ("int32", "int16", "int8"):
            # The operator's result is undefined for negative numbers.
            return self.call("rem", kind.lanes, self.text(expr.a), self.text(expr.b))
        return f"{a} % {b}" if kind.base.startswith("uint") else f"{a} - {a} / {b} * {b}"

    def extreme(self, expr: tirx.Max | tirx.Min) -> str:
        return f"{'max' if isinstance(expr, tirx.Max) else 'min'}({self.text(expr.a)}, {self.text(expr.b)})"

    def cast(self, expr: tirx.Cast) -> str:
        source, wanted = self.used(str(expr.value.ty)), self.used(str(expr.ty))
        text = self.text(expr.value)
        if source.is_float and wanted.base.startswith("uint"):
            # Converting a negative float would be undefined; C wraps around.
            text = f"{Type('int32', source.lanes).register}({text})" if wanted.bits < 32 else text
        if source.register != wanted.register or (source.is_float and wanted.base.startswith("uint")):
            text = f"{wanted.register}({text})"
        return text if source == wanted else self.narrowed(wanted, text)

    def negation(self, expr: tirx.Not) -> str:
        return f"not({self.text(expr.a)})" if type_of(str(expr.ty)).lanes > 1 else f"!{self.operand(expr.a)}"

    def inversion(self, expr: tirx.BitwiseNot) -> str:
        return self.narrowed(self.used(str(expr.ty)), f"~{self.operand(expr.a)}")

    def variable(self, var: tirx.Var) -> str:
        self.used(str(var.ty))
        return self.name(var)

    def conjunction(self, expr: tirx.And) -> str:
        terms = terms_of(expr)
        if type_of(str(expr.ty)).lanes > 1 or not all(map(is_harmless, terms)):
            return self.infix(expr)
        if all(map(is_simple, terms[1:])):
            return " && ".join(map(self.operand, terms))
        texts = list(map(self.text, terms))
        while len(texts) > MOST_LANES:
            texts = [f"all(bvec{MOST_LANES}({', '.join(texts[:MOST_LANES])}))", *texts[MOST_LANES:]]
        return f"all(bvec{len(texts)}({', '.join(texts)}))"

    def choice(self, condition: Any, yes: Any, no: Any) -> str:
        condition = condition.value if isinstance(condition, tirx.Broadcast) else condition
        if type_of(str(condition.ty)).lanes > 1:
            return f"mix({self.text(no)}, {self.text(yes)}, {self.text(condition)})"
        kind = self.used(str(yes.ty))
        if kind.base in _MIXED and is_harmless(condition) and is_harmless(no):
            if kind == Type("int32", 1) and is_harmless(yes):
                return f"mix({self.text(no)}, {self.text(yes)}, {self.text(condition)})"
            flag = condition if isinstance(condition, tirx.Var) else tirx.Var("inside", "bool")
            load = loaded_anyway(yes, flag) if self.can_declare and not self.is_register(yes) else None
            if load is not None:
                if flag not in self.names:
                    self.line(f"bool {self.name(flag)} = {self.text(condition)};")
                chosen = self.name(flag) if kind.lanes == 1 else f"bvec{kind.lanes}({self.name(flag)})"
                return f"mix({self.text(no)}, {self.text(load)}, {chosen})"
        return f"{self.operand(condition)} ? {self.operand(yes)} : {self.operand(no)}"

    def is_register(self, value: Any) -> bool:
        """Return whether a load, cast or not, reads registers, which need no address."""
        value = value.value if isinstance(value, tirx.Cast) else value
        return (
            isinstance(value, TensorLoad)
            and value.source not in self.parameters
            and not str(value.source.scope()).startswith("shared")
        )

    def let(self, expr: tirx.Let) -> str:
        self.names[expr.var] = self.operand(expr.value)
        return self.text(expr.body)

    def ramp(self, expr: tirx.Ramp) -> str:
        kind = self.used(str(expr.ty))
        steps = ", ".join(str(lane) for lane in range(kind.lanes))
        return (
            f"{kind.register}({self.text(expr.base)}) + {kind.register}({self.text(expr.stride)}) *"
            f" {kind.register}({steps})"
        )

    def broadcast(self, expr: tirx.Broadcast) -> str:
        return f"{self.used(str(expr.ty)).register}({self.text(expr.value)})"

    def shuffle(self, expr: tirx.Shuffle) -> str:
        kind, lanes = self.used(str(expr.ty)), []
        for vector in expr.vectors:
            count, text = type_of(str(vector.ty)).lanes, self.operand(vector)
            lanes += [text] if count == 1 else [f"{text}.{lane}" for lane in LANES[:count]]
        if not all(isinstance(index, tirx.IntImm) for index in expr.indices):
            (vector,), (index,) = expr.vectors, expr.indices
            return f"{self.operand(vector)}[{self.index(index)}]"
        chosen = [lanes[int(index)] for index in expr.indices]
        return chosen[0] if len(chosen) == 1 else f"{kind.register}({', '.join(chosen)})"

    def load(self, access: TensorLoad) -> str:
        kind, (index,) = self.used(str(access.ty)), access.indices or [tirx.const(0, "int32")]
        return self.loaded(access.source, kind, index)

    def loaded(self, buffer: Any, kind: Type, index: Any) -> str:
        element = type_of(str(buffer.dtype))
        lanes = type_of(str(index.ty)).lanes
        parameter = self.parameters.get(buffer)
        if parameter is None:
            name, element, count = self.array(buffer)
            if count == 1:
                return name
        else:
            whole = self.whole(index, parameter, element)
            if whole is not None:
                element, index, lanes = kind, whole, 1
            name = self.view(parameter, element)
        read = (lambda text: text) if parameter is None else element.read
        if lanes == 1:
            return read(f"{name}[{self.index(index)}]")
        return f"{kind.register}({', '.join(read(f'{name}[{self.lane(index, lane)}]') for lane in range(lanes))})"

    def whole(self, index: Any, parameter: Parameter, element: Type) -> Any | None:
        """Return the index, in vectors, of an access to a whole vector of an array.

        None for other accesses, and for buffers that are both read and written.
        """
        if (
            not isinstance(index, tirx.Ramp)
            or element.lanes > 1
            or index.lanes == 3
            or (parameter.is_read and parameter.is_written)
        ):
            return None
        lanes, step = int(index.lanes), self.analyzer.modular_set(index.base)
        is_whole = (
            isinstance(index.stride, tirx.IntImm)
            and int(index.stride) == 1
            and int(step.coeff) % lanes == 0
            and int(step.base) % lanes == 0
        )
        return self.divided(index.base, lanes) if is_whole else None

    def divided(self, multiple: Any, by: int) -> Any:
        if isinstance(multiple, tirx.Select):
            return tirx.Select(
                multiple.condition, self.divided(multiple.true_value, by), self.divided(multiple.false_value, by)
            )
        # Of a size at run time, a quotient without a remainder may be left, which GLSL's division gives, too.
        quotient = self.analyzer.simplify(tirx.floordiv(multiple, by))
        return structural_map(quotient, (tirx.FloorDiv, lambda expr: tirx.truncdiv(expr.a, expr.b)))

    def array(self, buffer: Any) -> tuple[str, Type, int]:
        if buffer not in self.arrays:
            self.fail(f"an access of {buffer.name} ({buffer.scope()}), which is neither a parameter nor allocated")
        return self.arrays[buffer]

    def extern(self, call: Call) -> str:
        name, kind, arguments = extern_of(call), self.used(str(call.ty)), list(call.args[1:])
        if name == "":
            return self.operand(arguments[0])
        if name.startswith("("):
            return f"{kind.register}({', '.join(map(self.text, arguments))})"
        if name == "mad":
            a, b, c = map(self.operand, arguments)
            return f"{a} * {b} + {c}"
        if name.startswith("vload_half"):
            return self.half_load(kind.lanes, *arguments)
        if name == "load_texel":
            offset, pointer = arguments
            return f"{self.view(self.parameters[pointed(pointer)[0]], 'uvec2')}[{self.index(offset)}]"
        texts = [self.text(argument) for argument in arguments]
        if name in _OF_FLOATS and str(arguments[0].ty).startswith("float64"):
            self.fail(f"{name} of fp64")
        if name == "fma" or SUB_GROUP_CALL.match(name) or (name in BUILT_IN.values() and name not in DEFINITIONS):
            return f"{name}({', '.join(texts)})"
        if name not in DEFINITIONS:
            self.fail(f"a call of {name}")
        if DOT_CALL.match(name):
            self.needs.setdefault("shaderIntegerDotProduct")
        if str(arguments[0].ty).startswith("float64"):
            if f"{name}_of_double" not in DEFINITIONS:
                self.fail(f"{name} of fp64")
            return self.call(f"{name}_of_double", kind.lanes, *texts)
        if str(arguments[0].ty).startswith("float16"):
            # These functions exist for fp32.
            wide = Type("float32", kind.lanes).register
            return f"{kind.register}({self.call(name, kind.lanes, *(f'{wide}({text})' for text in texts))})"
        return self.call(name, kind.lanes, *texts)

    def half_load(self, lanes: int, offset: Any, pointer: Any) -> str:
        buffer, base = pointed(pointer)
        parameter = self.parameters[buffer]
        if base is None and lanes == 4 and not (parameter.is_read and parameter.is_written):
            return self.call("half4_of", 4, f"{self.view(parameter, 'uvec2')}[{self.index(offset)}]")
        if base is None and lanes == 2:
            return f"unpackHalf2x16({self.view(parameter, 'uint')}[{self.index(offset)}])"
        starts = [
            self.analyzer.simplify((offset * lanes if base is None else base + offset * lanes) + lane)
            for lane in range(lanes)
        ]
        if parameter.is_read and parameter.is_written:
            elements = [f"float({self.view(parameter, Type('float16', 1))}[{self.index(start)}])" for start in starts]
        else:
            words = self.view(parameter, "uint")
            elements = [
                self.call("half_of", 1, f"{words}[{closed(self.index(start))} >> 1]", self.index(start))
                for start in starts
            ]
        return elements[0] if lanes == 1 else f"vec{lanes}({', '.join(elements)})"

    def texel(self, call: Call) -> str:
        image, *at = call.args[:4]
        coordinates = ", ".join(map(self.index, at))
        text = self.call("texel", 4, self.parameters[pointed(image)[0]].name, f"ivec3({coordinates})")
        kind = self.used(str(call.ty))
        return text if kind.base == "float32" else f"{kind.register}({text})"

    def reinterpret(self, call: Call) -> str:
        (value,) = call.args
        source, wanted = self.used(str(value.ty)), self.used(str(call.ty))
        if source.register == wanted.register:
            return self.text(value)
        of_pairs = _BITS_OF_PAIRS.get((str(value.ty), str(call.ty)))
        if of_pairs is not None:
            return f"{of_pairs}({self.text(value)})"
        if (source.base, wanted.base) not in _BITS:
            if {source.base, wanted.base} <= {"int32", "uint32"}:
                return f"{wanted.register}({self.text(value)})"
            self.fail(f"the bits of {source.base} as {wanted.base}")
        return f"{_BITS[source.base, wanted.base]}({self.text(value)})"

    def called(self, call: Call) -> str:
        write = _CALLS.get(op_of(call))
        if write is None:
            self.fail(f"a call of {op_of(call)}")
        return write(self, call)


def _is_large(expr: Any) -> bool:
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(value, tirx.FloatImm) and _ROUNDING <= abs(float(value.value)) < math.inf


_EXPRESSIONS: dict[type, Callable[[Expressions, Any], str]] = {
    **dict.fromkeys(_INFIX, Expressions.infix),
    tirx.Var: Expressions.variable,
    tirx.IntImm: Expressions.number,
    tirx.FloatImm: Expressions.number,
    tirx.Mod: Expressions.remainder,
    tirx.Max: Expressions.extreme,
    tirx.Min: Expressions.extreme,
    tirx.Cast: Expressions.cast,
    tirx.Not: Expressions.negation,
    tirx.BitwiseNot: Expressions.inversion,
    tirx.And: Expressions.conjunction,
    tirx.Select: lambda self, e: self.choice(e.condition, e.true_value, e.false_value),
    tirx.Let: Expressions.let,
    tirx.Ramp: Expressions.ramp,
    tirx.Broadcast: Expressions.broadcast,
    tirx.Shuffle: Expressions.shuffle,
    TensorLoad: Expressions.load,
    Call: Expressions.called,
}
_CALLS: dict[str, Callable[[Expressions, Any], str]] = {
    "tirx.call_pure_extern": Expressions.extern,
    "tirx.call_extern": Expressions.extern,
    "tirx.texture2d_load": Expressions.texel,
    "tirx.fma": lambda self, call: f"fma({', '.join(map(self.text, call.args))})",
    "tirx.reinterpret": Expressions.reinterpret,
    "prim.if_then_else": lambda self, call: self.choice(*call.args),
    "prim.likely": lambda self, call: self.text(call.args[0]),
}
