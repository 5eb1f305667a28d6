"""The vendor's library as a peer of Romou's kernels: cuDNN and cuBLAS through PyTorch, timed by CUDA's events."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from typing import Any

from romou.base.environment import variable
from romou.base.errors import UsageError
from romou.compiler.operators.families.conv2d_backward_filter import Conv2dBackwardFilter
from romou.compiler.operators.families.conv2d_transpose import Conv2dTranspose
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d

# The least milliseconds of one timing.
TIMING_MS = 5.0


def repeats_of(once_s: float) -> int:
    """Return the number of calls of `once_s` seconds that make a timing of TIMING_MS."""
    return max(1, min(1000, math.ceil(TIMING_MS / 1e3 / max(once_s, 1e-6))))


class Torch:
    """The libraries cuDNN and cuBLAS through PyTorch. UsageError if PyTorch is not installed, or finds no GPU."""

    def __init__(self, *, allow_tf32: bool = False) -> None:
        hint = "Install PyTorch with CUDA (pip install torch), or give --no-peer for Romou's times alone."
        try:
            import torch
        except ImportError as error:
            raise UsageError(
                "the vendor's side of the comparison runs through PyTorch, which is not installed", hint=hint
            ) from error
        if not torch.cuda.is_available():
            raise UsageError(
                "the vendor's side of the comparison runs through PyTorch, which sees no NVIDIA GPU", hint=hint
            )
        self.torch = torch
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = allow_tf32

    @property
    def versions(self) -> str:
        """The versions of PyTorch, cuDNN and CUDA."""
        torch = self.torch
        return f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, CUDA {torch.version.cuda}"

    def calls(self, work: Conv2d | Dense) -> dict[str, Callable[[], Any]]:
        """Return one call of the operator for each layout, by the layout's name."""
        torch = self.torch
        dtype = getattr(torch, work.dtype)

        def tensor(*shape: int) -> Any:
            return torch.randn(shape, device="cuda", dtype=dtype)

        if isinstance(work, Dense):
            a, b = tensor(work.m, work.k), tensor(work.k, work.n)
            transposed = b.t().contiguous().t()
            return {"row by row": lambda: torch.mm(a, b), "column by column": lambda: torch.mm(a, transposed)}
        top, left, bottom, right = work.padding
        if (top, left) != (bottom, right):
            raise UsageError(f"{work.name}: PyTorch pads both sides alike", hint="Leave it out, or give --no-peer.")
        if isinstance(work, Conv2dTranspose | Conv2dBackwardFilter):
            return self._backward_calls(work, tensor)
        x, w = (
            tensor(work.batch, work.in_channels, *work.in_hw),
            tensor(work.out_channels, work.in_channels // work.groups, *work.kernel),
        )
        settings = {"stride": work.stride, "padding": (top, left), "dilation": work.dilation, "groups": work.groups}
        last = [t.contiguous(memory_format=torch.channels_last) for t in (x, w)]
        return {
            "NCHW": lambda: torch.nn.functional.conv2d(x, w, **settings),
            "channels_last": lambda: torch.nn.functional.conv2d(*last, **settings),
        }

    def _backward_calls(
        self, work: Conv2dTranspose | Conv2dBackwardFilter, tensor: Callable[..., Any]
    ) -> dict[str, Callable[[], Any]]:
        """Return one call of a convolution's gradient for each layout."""
        own, other = (work.batch, work.in_channels, *work.in_hw), (work.batch, work.out_channels, *work.out_hw)
        is_by_input = isinstance(work, Conv2dTranspose)
        x, gradient = (tensor(*shape) for shape in ((other, own) if is_by_input else (own, other)))
        w = tensor(gradient.shape[1], x.shape[1] // work.groups, *work.kernel)
        settings = (
            [0],
            work.stride,
            work.padding[:2],
            work.dilation,
            False,
            [0, 0],
            work.groups,
            [is_by_input, not is_by_input, False],
        )

        def call(*tensors: Any) -> Callable[[], Any]:
            return lambda: self.torch.ops.aten.convolution_backward(*tensors, *settings)

        last = [t.contiguous(memory_format=self.torch.channels_last) for t in (gradient, x, w)]
        return {"NCHW": call(gradient, x, w), "channels_last": call(*last)}

    def timer(self, call: Callable[[], Any]) -> Callable[[], float]:
        """Return a function that times one call: its seconds, as a mean over the calls that fill TIMING_MS."""
        torch = self.torch
        for _ in range(3):
            call()  # cuDNN tries its algorithms
        number = repeats_of(self.seconds(call))
        run = self.captured(call, number)
        torch.cuda.synchronize()
        return lambda: self.seconds(run) / number

    def captured(self, call: Callable[[], Any], number: int = 1) -> Callable[[], Any]:
        """Return `number` calls as one CUDA graph, or as they are if they cannot be captured."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(number):
                    call()
        except RuntimeError:
            torch.cuda.synchronize()
            return lambda: [call() for _ in range(number)]
        graph.replay()
        return graph.replay  # type: ignore[no-any-return]

    def seconds(self, run: Callable[[], Any]) -> float:
        """Time one run on the GPU, from event to event."""
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def gpu_clocks() -> str:
    """Return clocks, temperature and power by nvidia-smi, or a text that says that it does not answer."""
    query = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw"
    try:
        first = (variable("CUDA_VISIBLE_DEVICES") or "0").partition(",")[0]
        command = ["nvidia-smi", f"--id={first}", f"--query-gpu={query}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not known: nvidia-smi does not answer"
    return f"SM, memory, highest SM, temperature, power: {done.stdout.strip().splitlines()[0]}"
