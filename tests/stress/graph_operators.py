"""Generators of inputs and attributes of random graphs, one for each kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from graph_cases import Builder, UnfitError

Generator = Callable[[Builder], object]
_UNARY = (
    *(
        "Abs",
        "Neg",
        "Relu",
        "Sigmoid",
        "Tanh",
        "Exp",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Erf",
        "Softplus",
        "Softsign",
        "Elu",
        "Selu",
        "LeakyRelu",
    ),
    *(
        "HardSigmoid",
        "HardSwish",
        "ThresholdedRelu",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Asinh",
        "Acosh",
        "Atanh",
        "Mish",
    ),
    *("Reciprocal", "Sqrt", "Log", "Celu", "Shrink", "Gelu", "IsNaN", "IsInf", "Identity"),
)
_CASTS = ("float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool", "int16")


def unary(b: Builder) -> object:
    operator, options = b.pick(_UNARY), dict[str, Any]()
    if operator in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu", "HardSigmoid") and b.chance(0.5):
        options = {"alpha": float(b.pick((0.1, 0.5, 1.3)))}
    if operator == "Gelu" and b.chance(0.5):
        options = {"approximate": "tanh"}
    return b.add(
        operator, b.any(kinds="fi" if operator in ("Abs", "Neg", "Sign", "Relu", "Identity") else "f"), **options
    )


def _beside(b: Builder, x: str, dtype: str | None = None) -> str:
    """Return a tensor that broadcasts with x: of its shape, with some sizes 1, or with fewer axes. Sometimes it is an
    existing result of the same dtype and shape.
    """
    same = [
        n
        for n, a in b.values.items()
        if a.shape == b.dims(x) and a.dtype == (dtype or b.array(x).dtype) and n not in b.exact
    ]
    if b.chance(0.4) and same:
        return str(b.pick(same))
    shape = [1 if b.chance(0.25) else size for size in b.dims(x)][b.whole(0, len(b.dims(x))) if b.chance(0.3) else 0 :]
    return b.fresh(shape, dtype or b.array(x).dtype.name)


def binary(b: Builder) -> object:
    operator = b.pick(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "Mean", "Sum", "PRelu"))
    x = b.any(kinds="ffffiu")
    y = _beside(b, x)
    if operator == "Div" and b.array(x).dtype.kind in "iu" and not b.array(y).all():
        raise UnfitError("division of integers by zero is not defined")
    if operator in ("Div", "Mod") and y == x:
        raise UnfitError("NaN where x is zero, which rounding decides")
    if operator in ("Pow", "Mod") and b.array(x).dtype.kind in "iu" and (b.array(y) <= 0).any():
        raise UnfitError("not defined")
    if operator == "Pow" and b.array(x).dtype.kind in "iu":
        with np.errstate(all="ignore"):
            if (np.abs(b.array(x).astype(np.float64) ** b.array(y)) > np.iinfo(b.array(x).dtype).max).any():
                raise UnfitError("powers beyond the integers are not defined")
    options = {"fmod": 1} if operator == "Mod" and (b.array(x).dtype.kind == "f" or b.chance(0.3)) else {}
    reads = (y, x) if operator not in ("PRelu", "Div", "Pow", "Mod") and b.chance(0.3) else (x, y)
    return b.add(operator, *reads, **options)


def comparison(b: Builder) -> object:
    x = b.any(kinds="ffiu")
    return b.add(b.pick(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")), x, _beside(b, x))


def logic(b: Builder) -> object:
    x = b.any(kinds="b")
    return b.add("Not", x) if b.chance(0.25) else b.add(b.pick(("And", "Or", "Xor")), x, _beside(b, x))


def bits(b: Builder) -> object:
    operator = b.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"))
    x = b.any(kinds="u" if operator == "BitShift" else "iu")
    if operator == "BitwiseNot":
        return b.add(operator, x)
    if operator == "BitShift":
        most = 8 * b.array(x).dtype.itemsize - 1
        y = b.given(b.rng.integers(0, most, b.dims(x)).astype(b.array(x).dtype), exact=True)
        return b.add(operator, x, y, direction=b.pick(("LEFT", "RIGHT")))
    return b.add(operator, x, _beside(b, x))


def where(b: Builder) -> object:
    x = b.any(kinds="ffi")
    return b.add("Where", _beside(b, x, "bool"), x, _beside(b, x))


def clip(b: Builder) -> object:
    x = b.any(kinds="ffi")
    kind = b.array(x).dtype
    low, high = (b.given(np.asarray(v, kind), b.chance(0.8)) for v in (-1, 2))
    # Without a bound an infinity stays one here, as in NumPy. Onnxruntime turns it into the largest number.
    return b.add("Clip", x, *b.pick(((low, high),) if b.is_special else ((low,), (low, high), ("", high))))


def cast(b: Builder) -> object:
    x, to = b.any(kinds="ffiub"), str(b.pick(_CASTS))
    array = b.array(x)
    if np.dtype(to).kind in "iu" and array.dtype.kind == "f":
        info = np.iinfo(to)
        with np.errstate(invalid="ignore"):
            if not (np.isfinite(array) & (array > float(info.min)) & (array < float(info.max))).all():
                raise UnfitError("what a cast out of range gives is not defined")
    return b.add("Cast", x, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def _axes(b: Builder, rank: int) -> list[int]:
    axes = sorted({b.whole(0, rank - 1) for _ in range(b.whole(1, rank))})
    return [axis - rank if b.chance(0.3) else axis for axis in axes]


def reduction(b: Builder) -> object:
    kind = b.pick(("Max", "Min", "Sum", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"))
    # Over several axes, and of doubles, onnxruntime's maximum drops NaN.
    x = b.any(kinds="ffffi", filled=True, finite=kind in ("Max", "Min"))
    if kind == "LogSum" and b.array(x).dtype.kind == "i" and (b.array(x) <= 0).any():
        raise UnfitError("no integer is the logarithm of a sum that is not positive")
    rank = len(b.dims(x))
    reads = (b.fixed(_axes(b, rank)),) if rank and b.chance(0.85) else ()
    return b.add(f"Reduce{kind}", x, *reads, keepdims=b.whole(0, 1))


def arg(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3, 4), kinds="ffi", filled=True, finite=True)
    rank = len(b.dims(x))
    return b.add(
        b.pick(("ArgMax", "ArgMin")),
        x,
        axis=b.whole(-rank, rank - 1),
        keepdims=b.whole(0, 1),
        select_last_index=b.whole(0, 1),
    )


def along_axis(b: Builder) -> object:
    operator = b.pick(("Softmax", "LogSoftmax", "Hardmax", "CumSum", "LpNormalization"))
    # Which element of a row with NaN is the largest is not defined.
    x = b.any(ranks=(1, 2, 3, 4), finite=operator == "Hardmax")
    axis = b.whole(-len(b.dims(x)), len(b.dims(x)) - 1)
    if operator == "CumSum":
        return b.add(operator, x, b.fixed(axis), exclusive=b.whole(0, 1), reverse=b.whole(0, 1))
    return b.add(operator, x, axis=axis, **({"p": b.whole(1, 2)} if operator == "LpNormalization" else {}))


def normalization(b: Builder) -> object:
    operator = b.pick(
        (
            "LayerNormalization",
            "InstanceNormalization",
            "GroupNormalization",
            "BatchNormalization",
            "MeanVarianceNormalization",
            "LRN",
        )
    )
    x = b.any(ranks=(1, 2, 3, 4) if operator == "LayerNormalization" else (3, 4), filled=True, finite=True)
    shape = b.dims(x)
    if b.array(x).dtype == np.float64:
        raise UnfitError("onnxruntime computes statistics in fp32")
    if operator == "LayerNormalization":
        axis = b.whole(0, len(shape) - 1)
        return b.add(
            operator, x, b.like(x, shape[axis:]), *([b.like(x, shape[axis:])] if b.chance(0.6) else []), axis=axis
        )
    if operator == "MeanVarianceNormalization":
        axes = _axes(b, len(shape))
        values = b.array(x).astype("float64")
        square = np.square(values).mean(tuple(axes))
        if (values.var(tuple(axes)) <= 1e3 * np.finfo(b.array(x).dtype).eps * square).any():
            raise UnfitError("only rounding is left of onnxruntime's difference of squares")
        return b.add(operator, x, axes=axes)
    if operator == "LRN":
        if x in b.constants:
            raise UnfitError("constants are folded by onnxruntime, whose moving sums are kept as a difference")
        return b.add(operator, x, size=int(b.pick((1, 3, 5))))
    channels = (shape[1],)
    if operator == "BatchNormalization":
        positive = b.given((np.abs(b.rng.standard_normal(channels)) + 0.5).astype(b.array(x).dtype), True)
        return b.add(operator, x, *(b.like(x, channels, True) for _ in range(3)), positive)
    if operator == "GroupNormalization":
        groups = b.pick([g for g in range(1, shape[1] + 1) if shape[1] % g == 0])
        return b.add(operator, x, b.like(x, channels), b.like(x, channels), num_groups=groups)
    return b.add(operator, x, b.like(x, channels), b.like(x, channels))


def transpose(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3, 4, 5, 6), kinds="ffffiub")
    return b.add("Transpose", x, perm=[int(i) for i in b.rng.permutation(len(b.dims(x)))])


def reshape(b: Builder) -> object:
    x = b.any(kinds="ffffib", filled=True)
    shape, rest = list[int](), int(np.prod(b.dims(x)))
    while rest > 1 and len(shape) < 5:
        factor = int(b.pick([f for f in range(1, rest + 1) if rest % f == 0][:12]))
        shape.append(factor)
        rest //= factor
    shape.append(rest)
    if b.chance(0.3):
        shape[b.whole(0, len(shape) - 1)] = -1
    operator = b.pick(("Reshape", "Reshape", "Flatten", "Unsqueeze", "Squeeze"))
    rank = len(b.dims(x))
    if operator == "Flatten":
        return b.add(operator, x, axis=b.whole(0, rank))
    if operator == "Unsqueeze":
        return b.add(operator, x, b.fixed([b.whole(0, rank)]))
    if operator == "Squeeze":
        ones = [i for i, size in enumerate(b.dims(x)) if size == 1]
        return b.add(operator, x, *([b.fixed(ones)] if ones else []))
    return b.add(operator, x, b.fixed(shape))


def concat(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3, 4, 5), kinds="ffffib")
    axis = b.whole(0, len(b.dims(x)) - 1)
    others = [b.like(x, [b.size() if i == axis else s for i, s in enumerate(b.dims(x))]) for _ in range(b.whole(1, 2))]
    reads = [x, *others, *([x] if b.chance(0.2) else [])]
    return b.add(
        "Concat",
        *[reads[i] for i in b.rng.permutation(len(reads))],
        axis=axis - (len(b.dims(x)) if b.chance(0.3) else 0),
    )


def split(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3, 4), kinds="ffffib")
    axis = b.whole(0, len(b.dims(x)) - 1)
    size = b.dims(x)[axis]
    if size < 2:
        raise UnfitError("nothing to split")
    at = b.whole(1, size - 1)
    return b.add("Split", x, b.fixed([at, size - at]), outputs=2, axis=axis)


def slice_(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3, 4, 5), kinds="ffffib")
    rank = len(b.dims(x))
    axes = sorted({b.whole(0, rank - 1) for _ in range(b.whole(1, rank))})
    starts, ends, steps = [], [], []
    for axis in axes:
        size, step = b.dims(x)[axis], int(b.pick((1, 1, 1, 2, 3, -1, -1, -2)))
        first, last = sorted((b.whole(0, max(size - 1, 0)), b.whole(0, size)))
        starts.append(first if step > 0 else last)
        ends.append(last if step > 0 else (first - 1 if first else -(2**40)))
        steps.append(step)
        if b.chance(0.2):
            starts[-1], ends[-1] = (0, 2**40) if step > 0 else (2**40, -(2**40))
    return b.add("Slice", x, *(b.fixed(v) for v in (starts, ends, axes, steps)))


def pad(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3, 4, 5), kinds="fffib", filled=True)
    mode, rank = b.pick(("constant", "constant", "reflect", "edge", "wrap")), len(b.dims(x))
    most = [max(size - 1, 0) for size in b.dims(x)]
    pads = [b.whole(0, min(3, most[i % rank])) if b.chance(0.6) else 0 for i in range(2 * rank)]
    if mode == "constant" and b.chance(0.3):
        pads = [-1 if b.dims(x)[i % rank] > 3 and b.chance(0.3) else p for i, p in enumerate(pads)]
    if mode != "constant":
        return b.add("Pad", x, b.fixed(pads), mode=mode)
    value = [b.like(x, (), True)] if b.chance(0.5) else []
    return b.add("Pad", x, b.fixed(pads), *value)


def tile(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3, 4), kinds="fffib")
    if b.chance(0.5):
        return b.add("Tile", x, b.fixed([b.whole(1, 3) for _ in b.dims(x)]))
    wanted = [b.size() if size == 1 else size for size in b.dims(x)]
    return b.add("Expand", x, b.fixed([*([b.whole(1, 3)] if b.chance(0.3) else []), *wanted]))


def _indices(b: Builder, shape: Sequence[int], below: int) -> str:
    if not below:
        raise UnfitError("nothing to index")
    low = -below if b.chance(0.4) else 0
    return b.given(b.rng.integers(low, below, shape).astype(b.pick(("int64", "int32"))), exact=True)


def gather(b: Builder) -> object:
    operator = b.pick(("Gather", "Gather", "GatherElements", "GatherND"))
    x = b.any(ranks=(1, 2, 3, 4), kinds="fffib", filled=True)
    shape, rank = b.dims(x), len(b.dims(x))
    axis = b.whole(0, rank - 1)
    if operator == "Gather":
        return b.add(operator, x, _indices(b, b.shape(b.whole(0, 2)), shape[axis]), axis=axis)
    if operator == "GatherElements":
        sizes = [b.size() if i == axis else b.whole(1, s) for i, s in enumerate(shape)]
        return b.add(operator, x, _indices(b, sizes, shape[axis]), axis=axis)
    depth = b.whole(1, rank)
    indices = np.stack([b.rng.integers(0, shape[i], (3, 2)) for i in range(depth)], -1)
    return b.add(operator, x, b.given(indices, exact=True))


def scatter(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3), kinds="ffi", filled=True)
    shape, rank = b.dims(x), len(b.dims(x))
    if b.chance(0.4):
        depth = b.whole(1, rank)
        cells = [
            tuple(int(i) for i in np.unravel_index(n, shape[:depth]))
            for n in b.rng.permutation(int(np.prod(shape[:depth])))[:3]
        ]
        return b.add(
            "ScatterND", x, b.given(np.asarray(cells, "int64"), exact=True), b.like(x, (len(cells), *shape[depth:]))
        )
    axis = b.whole(0, rank - 1)
    sizes = [b.whole(1, s) for s in shape]
    # Duplicate rows of an index are only defined with a reduction.
    order = np.argsort(b.rng.random([shape[i] if i == axis else s for i, s in enumerate(sizes)]), axis=axis)
    indices = np.take(order, range(sizes[axis]), axis=axis)
    options: dict[str, Any] = {"reduction": b.pick(("add", "max", "min", "mul"))} if b.chance(0.3) else {}
    return b.add(
        "ScatterElements", x, b.given(indices.astype("int64"), exact=True), b.like(x, sizes), axis=axis, **options
    )


def space(b: Builder) -> object:
    n, c, h, w = 1, b.whole(1, 3), b.whole(1, 5), b.whole(1, 5)
    if b.chance(0.5):
        return b.add(
            "DepthToSpace", b.fresh((n, c * 4, h, w), constant=False), blocksize=2, mode=b.pick(("DCR", "CRD"))
        )
    return b.add("SpaceToDepth", b.fresh((n, c, h * 2, w * 2), constant=False), blocksize=2)


def matrix(b: Builder) -> object:
    operator = b.pick(("Trilu", "EyeLike", "OneHot", "TopK", "ReverseSequence"))
    x = b.any(ranks=(2,) if operator == "EyeLike" else (2, 3), kinds="ffi", filled=True)
    shape = b.dims(x)
    if operator == "Trilu":
        return b.add(operator, x, *([b.fixed(b.whole(-2, 2))] if b.chance(0.5) else []), upper=b.whole(0, 1))
    if operator == "EyeLike":
        return b.add(operator, x, k=b.whole(-1, 1))
    if operator == "OneHot":
        return b.add(
            operator, _indices(b, b.shape(2), 7), b.fixed(7), b.fixed([-1.0, 2.0], "float32"), axis=b.whole(-1, 2)
        )
    if operator == "TopK":
        axis = b.whole(0, len(shape) - 1)
        if len(np.unique(b.array(x))) < b.array(x).size or np.isnan(b.array(x)).any():
            raise UnfitError("which of equals comes first is not defined")
        return b.add(operator, x, b.fixed([b.whole(1, shape[axis])]), outputs=2, axis=axis, largest=b.whole(0, 1))
    lengths = b.given(b.rng.integers(1, shape[0] + 1, shape[1]).astype("int64"), exact=True)
    return b.add(operator, x, lengths, time_axis=0, batch_axis=1)


def product(b: Builder) -> object:
    x = b.any(ranks=(1, 2, 3, 4), kinds="fffffi")
    shape = b.dims(x)
    if len(shape) == 2 and b.chance(0.4) and b.array(x).dtype.kind == "f":
        across, into = b.whole(0, 1), b.whole(0, 1)
        k, n = shape[1 - across], b.size()
        third = [b.like(x, b.pick(((), (n,), (shape[across], n), (shape[across], 1))))] if b.chance(0.5) else []
        return b.add(
            "Gemm",
            x,
            b.like(x, (n, k) if into else (k, n)),
            *third,
            transA=across,
            transB=into,
            alpha=float(b.pick((1.0, 0.5))),
        )
    batch = [1 if b.chance(0.3) else s for s in shape[:-2]][b.whole(0, 1) :] if len(shape) > 2 and b.chance(0.7) else []
    return b.add("MatMul", x, b.like(x, (shape[-1],) if b.chance(0.1) else (*batch, shape[-1], b.size())))


def einsum(b: Builder) -> object:
    equation, left, right = b.pick(
        (
            ("ij,jk->ik", "ij", "jk"),
            ("bij,bkj->bik", "bij", "bkj"),
            ("bhid,bhjd->bhij", "bhid", "bhjd"),
            ("ij,ij->i", "ij", "ij"),
        )
    )
    sizes = {letter: b.size() for letter in "bhijkd"}
    return b.add("Einsum", *(b.fresh([sizes[letter] for letter in side]) for side in (left, right)), equation=equation)


def _window(b: Builder, extents: Sequence[int]) -> dict[str, Any]:
    kernel = [b.whole(1, min(3, size)) for size in extents]
    options: dict[str, Any] = {"kernel_shape": kernel}
    if b.chance(0.4):
        options["strides"] = [b.whole(1, 3) for _ in extents]
    if b.chance(0.2):
        options["auto_pad"] = b.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
        if "strides" in options:
            # Where a stride leaves elements over, onnxruntime's padding is negative, ONNX's is 0.
            options["strides"] = [min(stride, k) for stride, k in zip(options["strides"], kernel, strict=True)]
    elif b.chance(0.6):
        options["pads"] = [b.whole(0, k - 1) for k in kernel * 2]
    return options


def _weight(b: Builder, x: str, shape: Sequence[int], constant: bool | None = None) -> str:
    """Return a finite weight. Implementations differ in whether an infinite one is multiplied by the zeros of a
    padding, which gives NaN.
    """
    return b.given((b.rng.standard_normal(shape) * (b.array(x).dtype.type(2) / 3)).astype(b.array(x).dtype), constant)


def _channels(b: Builder) -> tuple[int, int, int]:
    """Draw (groups, input channels, output channels)."""
    groups = int(b.pick((1, 1, 1, 2, 3, 5)))
    depthwise = groups > 1 and b.chance(0.5)
    return (
        groups,
        groups * (1 if depthwise else b.whole(1, 4)),
        groups * (b.whole(1, 2) if depthwise else b.whole(1, 5)),
    )


def convolution(b: Builder) -> object:
    x = b.any(ranks=(3, 4, 4, 4, 5), filled=True)
    groups, inputs, outputs = _channels(b)
    if x.startswith("t"):
        groups, inputs = (b.dims(x)[1], b.dims(x)[1]) if b.chance(0.3) else (1, b.dims(x)[1])
        outputs = groups * b.whole(1, 2) if groups > 1 else b.size()
    else:
        x = b.fresh((b.whole(1, 2), inputs, *b.shape(len(b.dims(x)) - 2)), constant=False)
    extents = b.dims(x)[2:]
    options = _window(b, extents)
    if b.chance(0.2) and "auto_pad" not in options:
        options["dilations"] = [b.whole(1, 2) for _ in extents]
    bias = [b.like(x, (outputs,))] if b.chance(0.6) else []
    weight = _weight(b, x, (outputs, inputs // groups, *options["kernel_shape"]), True if b.chance(0.8) else None)
    return b.add("Conv", x, weight, *bias, group=groups, **options)


def deconvolution(b: Builder) -> object:
    groups, inputs, outputs = _channels(b)
    shape = (b.whole(1, 2), inputs, *b.shape(b.pick((1, 2, 2, 3))))
    # Finite: a weight of zero that fills up a tile would turn an infinity beside it into NaN.
    x = b.given(b.rng.standard_normal(shape).astype(b.dtype), False)
    options = _window(b, b.dims(x)[2:])
    options.pop("auto_pad", None)
    if "strides" in options and b.chance(0.3):
        options["output_padding"] = [b.whole(0, s - 1) for s in options["strides"]]
    bias = [b.like(x, (outputs,))] if b.chance(0.5) else []
    return b.add(
        "ConvTranspose",
        x,
        _weight(b, x, (inputs, outputs // groups, *options["kernel_shape"])),
        *bias,
        group=groups,
        **options,
    )


def pool(b: Builder) -> object:
    x = b.any(ranks=(3, 4, 4, 4, 5), filled=True, finite=True)
    operator = b.pick(
        (
            "MaxPool",
            "MaxPool",
            "AveragePool",
            "AveragePool",
            "LpPool",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "GlobalLpPool",
        )
    )
    if operator.startswith("Global"):
        return b.add(operator, x)
    options = _window(b, b.dims(x)[2:])
    if "auto_pad" not in options:
        if b.chance(0.3):
            options["ceil_mode"] = 1
        if b.chance(0.15):
            options["dilations"] = [b.whole(1, 2) for _ in options["kernel_shape"]]
    if operator == "AveragePool" and b.chance(0.4):
        options["count_include_pad"] = 1
    return b.add(operator, x, **options)


def resize(b: Builder) -> object:
    # Onnxruntime multiplies infinities beside an element by a weight of zero.
    x = b.any(ranks=(3, 4, 4), kinds="ffffu", filled=True, finite=True)
    rank = len(b.dims(x))
    mode = b.pick(("nearest", "nearest", "linear", "cubic"))
    ways = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    options = {"mode": mode, "coordinate_transformation_mode": b.pick(ways)}
    if mode == "nearest":
        options["nearest_mode"] = b.pick(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    # With corners aligned a scale that gives no whole size counts by its fraction in onnxruntime.
    if b.chance(0.5) and options["coordinate_transformation_mode"] != "align_corners":
        return b.add(
            "Resize",
            x,
            "",
            b.fixed([1.0, 1.0, *(float(b.pick((0.5, 1.0, 2.0, 3.0))) for _ in range(rank - 2))], "float32"),
            **options,
        )
    return b.add("Resize", x, "", "", b.fixed([*b.dims(x)[:2], *(b.whole(1, 11) for _ in range(rank - 2))]), **options)


def quantized(b: Builder) -> object:
    operator = b.pick(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"))
    kind = b.pick(("uint8", "int8"))
    if operator == "DynamicQuantizeLinear":
        values = b.numbers(b.shape(2), "float32")
        if not 0 < np.ptp(np.append(values.astype("float64"), 0)) < float(np.finfo("float32").max):
            raise UnfitError("without a finite scale above zero nothing is defined")
        return b.add(operator, b.given(values, False), outputs=3)
    if operator == "MatMulInteger":
        m, k, n = b.size(), b.size(), b.size()
        return b.add(
            operator,
            b.fresh((m, k), "uint8", False),
            b.fresh((k, n), kind),
            b.fixed(b.whole(0, 9), "uint8"),
            b.fixed(b.whole(0, 9), kind),
        )
    if operator == "ConvInteger":
        c = b.whole(1, 5)
        return b.add(
            operator,
            b.fresh((1, c, 6, 7), "uint8", False),
            b.fresh((b.whole(1, 5), c, 3, 2), kind),
            b.fixed(b.whole(0, 9), "uint8"),
        )
    x = (
        b.any(ranks=(2, 3, 4), filled=True, finite=True)
        if operator == "QuantizeLinear"
        else b.fresh(b.shape(b.whole(2, 4)), kind, False)
    )
    if operator == "QuantizeLinear" and b.array(x).dtype != np.float32:
        raise UnfitError("scales are fp32")
    axis = b.whole(0, len(b.dims(x)) - 1)
    shape = (b.dims(x)[axis],) if b.chance(0.5) else ()
    scale = b.given((b.rng.random(shape) * 0.1 + 0.01).astype("float32"), True)
    return b.add(operator, x, scale, b.given(b.rng.integers(0, 20, shape).astype(kind), True), axis=axis)


def recurrent(b: Builder) -> object:
    operator, gates = b.pick((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    steps, batch, width, size, ways = b.whole(1, 5), b.whole(1, 3), b.whole(1, 5), b.whole(1, 5), b.whole(1, 2)
    sizes = [
        (ways, gates * size, width),
        (ways, gates * size, size),
        *([(ways, 2 * gates * size)] if b.chance(0.6) else []),
    ]
    weights = [b.given(b.rng.standard_normal(shape).astype("float32"), True) for shape in sizes]
    options = {"linear_before_reset": b.whole(0, 1)} if operator == "GRU" else {}
    way = "bidirectional" if ways == 2 else b.pick(("forward", "reverse"))
    # Finite: onnxruntime's gates turn NaN into numbers.
    x = b.given(b.rng.standard_normal((steps, batch, width)).astype("float32"), False)
    return b.add(operator, x, *weights, outputs=b.whole(1, 2), hidden_size=size, direction=way, **options)


def sampling(b: Builder) -> object:
    x = b.fresh((1, b.whole(1, 5), b.whole(2, 7), b.whole(2, 7)), "float32", False)
    grid = b.given((b.rng.random((1, b.whole(1, 5), b.whole(1, 5), 2)) * 2.4 - 1.2).astype("float32"))
    modes = {"mode": b.pick(("linear", "nearest", "cubic")), "padding_mode": b.pick(("zeros", "border", "reflection"))}
    return b.add("GridSample", x, grid, align_corners=b.whole(0, 1), **modes)


GENERATORS: tuple[Generator, ...] = (
    *[unary] * 6, *[binary] * 6, comparison, logic, bits, where, clip, cast, cast, *[reduction] * 3, arg, along_axis, along_axis, normalization, normalization,  # noqa: E501
    *[transpose] * 3, *[reshape] * 3, concat, concat, split, slice_, slice_, pad, pad, tile, gather, gather, scatter, space, matrix, *[product] * 4, einsum,  # noqa: E501
    *[convolution] * 5, deconvolution, pool, pool, resize, quantized, recurrent, sampling,
)  # fmt: skip
