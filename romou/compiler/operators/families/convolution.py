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
        Conv3d(in_channels=8, in_dhw=(5, 9, 7), out_channels=12, kernel=(3, 3, 3), padding=(1, 1, 1, 1, 1, 1)),
        Conv3d(
            in_channels=3,
            in_dhw=(6, 5, 8),
            out_channels=6,
            kernel=(3, 1, 2),
            stride=(2, 1, 2),
            padding=(0, 0, 1, 1, 0, 0),
            dilation=(2, 1, 1),
            batch=2,
        ),
        Conv3d(
            in_channels=6,
            in_dhw=(4, 7, 5),
            out_channels=6,
            kernel=(3, 3, 3),
            padding=(1, 1, 1, 1, 1, 1),
            stride=(1, 2, 2),
            groups=6,
        ),
        Conv3d(
            in_channels=16,
            in_dhw=(4, 5, 6),
            out_channels=8,
            kernel=(2, 3, 3),
            padding=(1, 1, 1, 0, 1, 1),
            groups=2,
            batch=2,
        ),
        Conv3d(in_channels=6, in_dhw=(3, 5, 6), out_channels=9, kernel=(2, 2, 2), groups=3),
    )


CONV2D = Conv2dFamily(
    "conv2d",
    Conv2d(in_channels=8, in_hw=(13, 11), out_channels=12, kernel=(3, 3), padding=(1, 1, 1, 1)),
    Conv2d(in_channels=3, in_hw=(9, 10), out_channels=7, kernel=(5, 3), stride=(2, 1), padding=(2, 1, 1, 0)),
    Conv2d(
        in_channels=16,
        in_hw=(7, 6),
        out_channels=8,
        kernel=(3, 3),
        padding=(2, 2, 2, 2),
        dilation=(2, 2),
        groups=2,
        batch=2,
    ),
)
DEPTHWISE = Conv2dFamily(
    "depthwise",
    Conv2d(in_channels=16, in_hw=(13, 13), out_channels=16, kernel=(3, 3), padding=(1, 1, 1, 1), groups=16),
    Conv2d(in_channels=6, in_hw=(9, 8), out_channels=6, kernel=(5, 5), stride=(2, 2), padding=(2, 2, 2, 2), groups=6),
)
GROUP_CONV2D = Conv2dFamily(
    "group_conv2d",
    Conv2d(in_channels=6, in_hw=(7, 7), out_channels=12, kernel=(3, 3), padding=(1, 1, 1, 1), groups=6),
    Conv2d(in_channels=12, in_hw=(6, 5), out_channels=9, kernel=(3, 2), padding=(1, 0, 1, 1), groups=3),
    precedence=1,
    works_in_texels=False,
)
FAMILIES = (CONV2D, DEPTHWISE, GROUP_CONV2D, Conv3dFamily())
