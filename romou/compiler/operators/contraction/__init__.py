"""The contraction: the sum of products that convolutions, dense layers and matrix products share.

form.py         what a family hands over
knobs.py        the knobs, which of their choices an operator has, and which configs are valid
defaults.py     the config that is tried first
stages.py       the sum as stages over a padded domain
schedule.py     how the stages become a kernel
tensor_core.py  what tensor cores ask of a config; tensor_core_schedule.py is their kernel
"""

from romou.compiler.operators.contraction.form import Contraction

__all__ = ["Contraction"]
