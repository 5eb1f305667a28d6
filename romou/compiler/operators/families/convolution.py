"""Convolutions of images and of volumes, in families by the kind of their groups."""

from __future__ import annotations

from romou.compiler.operators.algorithms.winograd.convolution import TILES, Winograd, algorithms
from romou.compiler.operators.families.bases.convolution import ConvolutionFamily, groups_of
from romou.compiler.operators.workload import Conv2d, Conv3d


class Conv2dFamily(ConvolutionFamily[Conv2d]):
    """Convolutions of images with one kind of groups, which has the family's name."""

    workload = Conv2d

    def __init__(self, name: str, *typical: Conv2d, precedence: int = 0, works_in_texels: bool = True) -> None:
        self.name, self.typical = name, typical
        self.precedence, self.works_in_texels = precedence, works_in_texels

    def is_mine(self, w: Conv2d) -> bool:
        return groups_of(w) == self.name

    def winograd(self, w: Conv2d) -> dict[str, Winograd]:
        return {name: Winograd(w, TILES[name]) for name in algorithms(w)}


class Conv3dFamily(ConvolutionFamily[Conv3d]):
    """Convolutions of volumes whose windows span several frames. Others are convolutions of images."""

    name = "conv3d"
    workload = Conv3d
    operators = frozenset({"relax.nn.conv3d"})
    has_frames = True
    typical = (
        Conv3d.of(8, (5, 9, 7), 12, (3, 3, 3), padding=1),
        Conv3d.of(
            3, (6, 5, 8), 6, (3, 1, 2), stride=(2, 1, 2), padding=(0, 0, 1, 1, 0, 0), dilation=(2, 1, 1), batch=2
        ),
        Conv3d.of(6, (4, 7, 5), 6, (3, 3, 3), padding=1, stride=(1, 2, 2), groups=6),
        Conv3d.of(16, (4, 5, 6), 8, (2, 3, 3), padding=(1, 1, 1, 0, 1, 1), groups=2, batch=2),
        Conv3d.of(6, (3, 5, 6), 9, (2, 2, 2), groups=3),
    )


CONV2D = Conv2dFamily(
    "conv2d",
    Conv2d.of(8, (13, 11), 12, (3, 3), padding=1),
    Conv2d.of(3, (9, 10), 7, (5, 3), stride=(2, 1), padding=(2, 1, 1, 0)),
    Conv2d.of(16, (7, 6), 8, (3, 3), padding=2, dilation=2, groups=2, batch=2),
)
DEPTHWISE = Conv2dFamily(
    "depthwise",
    Conv2d.of(16, (13, 13), 16, (3, 3), padding=1, groups=16),
    Conv2d.of(6, (9, 8), 6, (5, 5), stride=2, padding=2, groups=6),
)
GROUP_CONV2D = Conv2dFamily(
    "group_conv2d",
    Conv2d.of(6, (7, 7), 12, (3, 3), padding=1, groups=6),
    Conv2d.of(12, (6, 5), 9, (3, 2), padding=(1, 0, 1, 1), groups=3),
    precedence=1,
    works_in_texels=False,
)
FAMILIES = (CONV2D, DEPTHWISE, GROUP_CONV2D, Conv3dFamily())
