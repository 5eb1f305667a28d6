"""The contraction: the sum of products that convolutions, dense layers and matrix products share.

form.py                   the contraction as a family describes it
data_reads.py             the data that a group reads in an iteration
knobs.py                  knobs, their choices for an operator, and constraints between them
stages.py                 the sum as stages over a padded domain
schedule.py               from stages to a kernel
defaults.py               the config that is tried first
  tiles.py                register tiles without spills, by registers.py
  occupancy.py            work groups that fill warps, and work-items that fill the device
tensor_core.py            constraints of tensor cores
tensor_core_schedule.py   from stages to a kernel with tensor cores
tensor_core_defaults.py   default configs with tensor cores
"""

from romou.compiler.operators.contraction.form import Contraction

__all__ = ["Contraction"]
