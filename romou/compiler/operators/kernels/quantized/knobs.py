"""Knobs of all products with packed weights."""

from romou.base.knob import Knob

GROUP_PARTS = Knob(
    name="group_parts",
    choices=(1, 2, 4, 8, 16, 32),
    default=1,
    help="work-items that share a sum over k, and add up their parts in local memory",
)
# Rows of activations of a work-item without tensor cores, and on tensor cores.
PLAIN_ITEM_DATA, MMA_ITEM_DATA = (1, 2, 3, 4, 6, 8), (2, *range(4, 65, 4))
ITEM_DATA = Knob(
    name="item_data",
    choices=tuple(sorted({*PLAIN_ITEM_DATA, *MMA_ITEM_DATA})),
    default=1,
    help="rows of activations of a work-item",
    scales_outputs=True,
)
