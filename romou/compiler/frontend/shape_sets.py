"""The shapes that a model is compiled for: one, or a set of them.

shapes=[{"ids": (1, 32)}, {"ids": (1, 128)}]      ->      both
dims={"batch": 1, "tokens": (32, 128)}            ->      {"ids": (1, 32)}, {"ids": (1, 128)}
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import onnx

from romou.base.arguments import whole_of
from romou.base.errors import UsageError, unknown_name
from romou.base.open_dimensions import terms_of

Shapes: TypeAlias = Mapping[str, Sequence[int]]
# Ranges are sizes at run time, which no shape has.
Dims: TypeAlias = Mapping[str, "int | Sequence[int] | Sequence[range]"]


def shape_sets(proto: onnx.ModelProto, shapes: Shapes | Sequence[Shapes] | None, dims: Dims | None) -> list[Shapes]:
    """Return the shapes of inputs by name, for each shape that a model is compiled for.

    shapes: shapes of inputs, or several of them.
    dims: named dimension -> its size, or several. Several dimensions give all combinations. `shapes` precedes. A name
        may be a sum, as `past + seq`, of names that have sizes.

    Raises
    ------
    UsageError
        A wrong argument, a shape is there twice, or no input has a dimension of the name.
    """
    given = _listed(shapes)
    by_dims = list(_by_dims(proto, dims)) if dims is not None else [{}]
    sets: list[Shapes] = [{**of_dims, **each} for each in given for of_dims in by_dims]
    distinct = {str(sorted((name, tuple(sizes)) for name, sizes in each.items())) for each in sets}
    if len(distinct) < len(sets):
        raise UsageError(f"shapes: {len(sets)} are given, and some of them are the same", hint="Give each shape once.")
    return sets


def _listed(shapes: Shapes | Sequence[Shapes] | None) -> list[Shapes]:
    if shapes is None or isinstance(shapes, Mapping):
        return [shapes or {}]
    example = "[{'ids': (1, 32)}, {'ids': (1, 128)}]"
    if isinstance(shapes, str) or not isinstance(shapes, Sequence) or not shapes:
        raise UsageError(f"shapes={shapes!r}: expected {{name: sizes}}, or a list of such shapes: {example}")
    for each in shapes:
        if not isinstance(each, Mapping):
            raise UsageError(f"shapes: {each!r} is no shape; expected {{name: sizes}}: {example}")
    return list(shapes)


def _by_dims(proto: onnx.ModelProto, dims: Dims) -> Iterator[Shapes]:
    """Yield shapes of all inputs whose dimensions are known with each combination of `dims`."""
    if not isinstance(dims, Mapping):
        raise UsageError(f"dims={dims!r}: expected {{name: size}}, for example {{'batch': 1, 'tokens': (32, 128)}}")
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    whole = {d.dim_param: None for value in inputs for d in value.type.tensor_type.shape.dim if d.dim_param}
    named = {term: None for name in whole for term in terms_of(name) if not term.isdecimal()}
    for name in dims:
        if name not in whole and name not in named:
            raise unknown_name("named dimension", str(name), list(named))
    sizes = [listed_sizes(name, given) for name, given in dims.items()]
    for combination in itertools.product(*sizes):
        size_of = dict(zip(dims, combination, strict=True))
        shapes = {}
        for value in inputs:
            extents = value.type.tensor_type.shape.dim
            shape = [_size(d.dim_param, size_of) if d.dim_param else d.dim_value for d in extents]
            if any(d.dim_param for d in extents) and None not in shape:
                shapes[value.name] = tuple(int(size) for size in shape if isinstance(size, int))
        yield shapes


def _size(name: str, sizes: Mapping[str, object]) -> int | None:
    """Return the size of a named dimension: its own, or the sum that the name is. None if it is not known."""
    terms = [int(term) if term.isdecimal() else sizes.get(term) for term in terms_of(name, sizes)]
    known = [term for term in terms if isinstance(term, int)]
    return sum(known) if len(known) == len(terms) else None


def listed_sizes(name: str, given: object) -> list[int] | list[range]:
    """Return the sizes of a dimension: numbers, or classes of sizes at run time. UsageError if one is wrong."""
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str | range) else [given]
    classes = [each for each in several if isinstance(each, range)]
    if classes and len(classes) == len(several):
        starts = [max(1, classes[0].start), *(sizes.stop for sizes in classes[:-1])]
        wanted = [range(start, max(sizes.stop, start + 1)) for start, sizes in zip(starts, classes, strict=True)]
        if wanted != classes:
            raise UsageError(
                f"dims[{name!r}]={given!r}: a size at run time is from 1 or more to a bound, and"
                " classes follow one another",
                hint="For example {'tokens': range(1, 513)}, --dim tokens=1..512, --dim tokens=1..32,33..512.",
            )
        return classes
    sizes = [whole_of(f"dims[{name!r}]", size, lowest=1) for size in several]
    if not sizes or len(set(sizes)) < len(sizes):
        raise UsageError(
            f"dims[{name!r}]={given!r}: expected different sizes", hint=f"For example {{{name!r}: (1, 4)}}."
        )
    return sizes
