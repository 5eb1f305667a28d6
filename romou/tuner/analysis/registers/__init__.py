"""Registers that a compiler gives a work-item: the one estimate that `romou inspect`, pruning and regression runs
share.

    lowered TIR --reader--> instructions --liveness--> basic blocks --scheduler--> live registers --estimate-->
    RegisterEstimate

The scheduler follows Mesa's for Adreno (Mesa 25, ir3_sched.c), block by block:

- First comes what frees registers or adds none, then what is used next.
- An instruction that uses a load still under way is put off while there is anything else to do.
- So is the next load of the same memory, which has to follow the one before. Eight loads of images may be under way.
- Addresses wait for nothing, so those of a whole block lie in registers before its first product. This, and not the
  code as it stands, decides.

Mesa's compiler for Mali keeps to the order of the kernel's text and to few registers: `RegisterEstimate.as_written`.

On 200 random configs of all families, the rank correlation with Mesa's own numbers is 0.94
(benchmarks/bench_registers.py).
"""

from romou.tuner.analysis.registers.estimate import RegisterEstimate, address_registers, estimate_registers

__all__ = ["RegisterEstimate", "address_registers", "estimate_registers"]
