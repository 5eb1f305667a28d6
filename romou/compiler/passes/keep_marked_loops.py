"""Loops that a phone's compiler would unroll, which spills: it loads ahead for all of their iterations.

    for ic in 2:                                KEEP_LOOP()
      for ky in 3:                              for ic in 2:
        for kx in 3:                      ->      for ky in 3:
          … 8 loads, 16 products                    for kx in 3:
                                                      … 8 loads, 16 products

The inner loops may still be unrolled. A 3x3 convolution in groups of eight channels then takes 1.69 instructions for
each multiply-add instead of 1.86 with 85 spills under Mesa's compiler for Adreno 660.

Loops are marked (`primitives.keep_loops`). A language without `Dialect.keep_loop` leaves them to its compiler.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_mutate

from romou.compiler.passes.advancing_pointers import keeps_loops
from romou.compiler.tir.calls import keeps_next_loop
from romou.compiler.tir.primitives import KEEP_ANY_LOOP
from romou.compiler.tir.traversal import function_pass, nodes_in, sequence_of, statements_of
from romou.devices.backends.dialect import dialect_of


@function_pass
def keep_marked_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep the marked loops of a device function. The marks are removed."""
    dialect = dialect_of(func)
    keeps = dialect.has_pointers and keeps_loops(func)

    def kept(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        new = mutator.default_mutate(stmt)
        if stmt.attr_key != KEEP_ANY_LOOP:
            return new
        parts = list(statements_of(new.body))
        # The loop is the last statement, and may be kept already.
        calls = [call for part in parts[:-1] for call in nodes_in(part, tvm.ir.Call)]
        if keeps and not any(map(keeps_next_loop, calls)):
            parts.insert(-1, dialect.keep_loop())
        return sequence_of(parts)

    return func.with_body(structural_mutate(func.body, (tirx.AttrStmt, kept)))
