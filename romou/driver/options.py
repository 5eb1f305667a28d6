"""Options of the functions that take a model. Each option is described once, for Python and for the command line.

The `...Keywords` types have the same options for type checkers, in calls such as `romou.tune(model, trials=3)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypedDict, get_args

from romou.base.arguments import instance_of, whole_of
from romou.base.checked_options import CheckedOptions, number, option, whole
from romou.base.errors import UsageError, unknown_name
from romou.base.variants import VARIANTS, VariantName

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import onnx

    from romou.compiler.frontend import ImportedModel, Precision, Shapes
    from romou.devices.targets import Target
    from romou.runtime.rpc import Address
    from romou.tuner.measure import MeasureOptions
    from romou.tuner.pruning import Rules
    from romou.tuner.search import TrialCallback, TuningOptions


AnyModel: TypeAlias = "onnx.ModelProto | str | Path | ImportedModel"
PrecisionName: TypeAlias = Literal["float32", "float16", "mixed"]
IoPrecisionName: TypeAlias = Literal["float32", "float16"]
L1Rule: TypeAlias = Literal["reread", "paper"]
ExplorerName: TypeAlias = Literal["evolution", "annealing", "ranking", "random", "exhaustive"]
# Keys of L1_RULES in romou.compiler.operators.costs.criteria
L1_CHOICES: tuple[L1Rule, ...] = get_args(L1Rule)
PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
_PRECISION = (
    "float16: an fp32 model becomes fp16 inside. mixed: what is sensitive stays fp32. float32: the model's own types."
)


class ImportKeywords(TypedDict, total=False):
    """Options of a model's import."""

    shapes: Shapes | Sequence[Shapes] | None
    dims: Mapping[str, int | Sequence[int] | Sequence[range]] | None
    constants: Mapping[str, object] | None
    precision: PrecisionName
    io_precision: IoPrecisionName | None
    calibration: Sequence[Mapping[str, np.ndarray]] | None


class ModelKeywords(ImportKeywords, total=False):
    """Options of a model's import, and its target."""

    target: Target | str | Mapping[str, object]


class CompileKeywords(ModelKeywords, total=False):
    """Options of `romou.compile`."""

    device: int | str | None
    pad: Mapping[str, float] | None
    verify: bool
    strict: bool
    max_memory: int | None


class CheckKeywords(ModelKeywords, total=False):
    """Options of `romou.check`."""

    device: int | str | None
    max_memory: int | None
    max_ms: float | None


class TuneKeywords(ModelKeywords, total=False):
    """Options of `romou.tune`."""

    device: int | str | None
    pad: Mapping[str, float] | None
    trials: int
    seconds: float | None
    no_progress: int | None
    work_dir: str | Path | Literal[False] | None
    seed: int
    progress: bool | None
    prune: bool
    l1: L1Rule
    database: bool
    allow_tf32: bool
    variant: VariantName | None
    explorer: ExplorerName
    rpc: str | None
    builders: str | None
    trust_builders: bool
    measure: MeasureOptions | Mapping[str, object] | None
    callback: TrialCallback | None
    verify: bool
    strict: bool
    max_memory: int | None


class RecordedKeywords(ModelKeywords, total=False):
    """Options of `romou.memory_plan`."""

    work_dir: str | Path | None


class InspectKeywords(RecordedKeywords, total=False):
    """Options of `romou.inspect`."""

    kernel: str | None
    passes: bool


class SpaceKeywords(ModelKeywords, total=False):
    """Options of `romou.pruned_spaces`."""

    rules: Rules | None


class ReportKeywords(TypedDict, total=False):
    """Options of `romou.write_report`."""

    output: str | Path
    model: onnx.ModelProto | str | Path | None
    target: Target | str | Mapping[str, object] | None
    shapes: Shapes | Sequence[Shapes] | None
    dims: Mapping[str, int | Sequence[int] | Sequence[range]] | None
    constants: Mapping[str, object] | None
    precision: PrecisionName | None
    io_precision: IoPrecisionName | None
    calibration: Sequence[Mapping[str, np.ndarray]] | None


class BenchKeywords(ModelKeywords, total=False):
    """Options of `romou.bench`."""

    device: int | str | None
    work_dir: str | Path | None
    repeats: int
    seed: int
    times: bool
    label: str | None
    rpc: str | None


class CompareKeywords(ImportKeywords, total=False):
    """Options of `romou.compare`."""

    device: int | str | None
    fail_over: float | str
    work_dir: str | Path | None
    repeats: int
    seed: int
    times: bool
    measures: bool
    recorded: bool
    label: str | None
    rpc: str | None


@dataclass(frozen=True, kw_only=True)
class ImportOptions(CheckedOptions):
    """Options of a model's import: shapes, constants, and the precision that it computes with."""

    shapes: Shapes | Sequence[Shapes] | None = option(
        None,
        """
        Shape by name, for inputs whose shape the model leaves open. `tune` and `compile` take a list of such shapes,
        too, and return a `MultiShapeModel`. See docs/shapes.md.
        """,
        help_text=(
            "Fix a dynamic input: input=1,3,224,224. May be repeated: other inputs, or (tune, compile, bench) other"
            " shapes of the same ones."
        ),
    )
    dims: Mapping[str, int | Sequence[int] | Sequence[range]] | None = option(
        None,
        """
        Size by name, for dimensions that the model names, such as "batch". `tune` and `compile` take several sizes of
        one, too: {"tokens": (32, 128)}, or a size at run time, also of several dimensions: {"tokens": range(1, 513)},
        with kernels for each class of sizes if it is a list of such ranges, or if the rows of products with packed
        weights have the size. `shapes` precedes.
        """,
        help_text=(
            "Fix a named dimension: batch=1, or (tune, compile, bench) several sizes: batch=1,4,8, or (tune, compile) a"
            " size at run time: tokens=1..512, or in classes: tokens=1,2..32,33..512. May be repeated, for other"
            " dimensions."
        ),
    )
    constants: Mapping[str, object] | None = option(
        None,
        """
        Value by name, for inputs that become constants of the model. The model then lacks these inputs, and conditions
        and counts that depend on them are folded.
        """,
        help_text="Make an input a constant of the model, which then lacks it: sr=16000, axes=[1,2]. May be repeated.",
    )
    precision: PrecisionName = option(
        "float32",
        """
        What the model computes with: "float32" leaves its types as they are. "float16" converts an fp32 model to fp16.
        "mixed" keeps sensitive nodes in fp32, found by a check of the whole model against onnxruntime. See
        docs/precision.md.
        """,
        help_text=_PRECISION,
        choices=PRECISIONS,
    )
    io_precision: IoPrecisionName | None = option(
        None,
        '"float16": float inputs and outputs are fp16, too. None: as the model has them.',
        help_text="float16: inputs and outputs, too. [default: the model's types]",
        choices=get_args(IoPrecisionName),
    )
    calibration: Sequence[Mapping[str, np.ndarray]] | None = option(
        None,
        """
        Inputs, each as {name: array}, on which ranges and errors are measured. The outputs are checked on the first.
        None: random ones.
        """,
        help_text="Inputs that ranges and errors are taken of, by name. May be repeated. [default: random]",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parsed_precision()

    def parsed_precision(self) -> Precision:
        """Return precision, io_precision and calibration, checked."""
        from romou.compiler.frontend import Precision

        return Precision.checked(self.precision, self.io_precision, self.calibration)

    @property
    def listed_dims(self) -> Mapping[str, Sequence[int] | Sequence[range]]:
        """Sizes of each dimension in `dims`, checked: numbers, or classes of sizes at run time."""
        from romou.compiler.frontend import listed_sizes

        dims = self.dims if isinstance(self.dims, Mapping) else {}
        return {str(name): listed_sizes(str(name), sizes) for name, sizes in dims.items()}

    @property
    def run_time_dims(self) -> dict[str, list[range]]:
        """The dimensions with a size at run time, and their classes."""
        dims = {name: [each for each in sizes if isinstance(each, range)] for name, sizes in self.listed_dims.items()}
        return {name: classes for name, classes in dims.items() if classes}

    def shape_sets(self, model: AnyModel) -> tuple[AnyModel, list[Shapes]]:
        """Return the model with its constants, and each shape that it is compiled for."""
        from romou.compiler.frontend import ImportedModel, load_onnx, shape_sets, with_constants

        if self.run_time_dims:
            raise UsageError("a size at run time is for tune and compile", hint="Give one size here.")
        if isinstance(model, ImportedModel):
            if self.shapes or self.dims or self.constants:
                raise UsageError(
                    "shapes, dims and constants of an imported model are fixed", hint="Give them where it is made."
                )
            return model, [{}]
        with_values = with_constants(model, self.constants)
        if self.dims is None and (self.shapes is None or isinstance(self.shapes, Mapping)):
            return with_values, [self.shapes or {}]
        proto = load_onnx(with_values)
        return proto, shape_sets(proto, self.shapes, self.dims)

    def imported(self, model: AnyModel, precision: Precision | None = None) -> ImportedModel:
        """Import a model for one shape. precision: another one than that of the options."""
        from romou.compiler.compilation import import_model

        proto, sets = self.shape_sets(model)
        if len(sets) > 1:
            raise UsageError(
                f"{len(sets)} shapes are given, and this takes one model of one shape",
                hint="Call it once for each shape. `tune`, `compile` and `romou bench` take several.",
            )
        return import_model(proto, sets[0], precision or self.parsed_precision())


@dataclass(frozen=True, kw_only=True)
class TargetOptions(CheckedOptions):
    """The option `target`."""

    target: Target | str | Mapping[str, object] = option(
        default="opencl",
        doc="What to compile for, as in `tune`. A target that names a device needs none attached.",
        help_text='A named device needs none attached: "opencl -device=adreno640".',
    )

    def parsed_target(self) -> Target:
        """Return the target that `target` describes."""
        from romou.devices.targets import Target

        return self.target if isinstance(self.target, Target) else Target(self.target)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ImportOptions, TargetOptions):
    """Options of a model's import, and its target."""


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(ModelOptions):
    """Options of a model's import, and its target with a device."""

    device: int | str | None = option(
        None,
        """
        An attached device, by its number in `romou devices` (1, "vulkan:0") or a part of its name or platform. Or the
        GPU to compile for, attached or not, by its name ("adreno740"), a phone's ("Pixel 8"), or a system on a chip's
        ("Snapdragon 8 Gen 2", "SM8550"), which is the same as `-device=` in the target. None: as the target says, on
        the first attached device.
        """,
        help_text=(
            "Attached device by number or name (1, vulkan:0, intel), or GPU, phone or SoC (adreno740, 'Pixel 8',"
            " sm8550). [default: the target's, or the first]"
        ),
        metavar="NAME",
    )

    def parsed_target(self) -> Target:
        """Return the target, with the device's name if `device` names a GPU."""
        from romou.devices.targets import with_device

        return with_device(super().parsed_target(), self.device)[0]

    def device_index(self, rpc: str | None = None) -> int | None:
        """Return the number of the attached device that `device` chooses. None if it chooses none.

        UsageError if one is chosen, but the devices are at the address `rpc`.
        """
        from romou.devices.targets import with_device

        index = with_device(super().parsed_target(), self.device)[1]
        if index is not None and rpc is not None:
            raise UsageError(
                f"device={self.device!r} is one of this machine, but the devices are at {rpc}", hint="Give one of them."
            )
        return index


def _pad() -> Any:
    """Return the option `pad` of `compile` and `tune`."""
    return option(
        None,
        """
        Value by name, for inputs that are padded behind their elements if a run's shape is between those given: token
        ids and their mask {"ids": 0, "mask": 0}. The next larger shape runs, and outputs are cut. None: only the shapes
        given run.
        """,
        help_text="Pad this input with a value, if a run's shape is between those given: ids=0. May be repeated.",
    )


@dataclass(frozen=True, kw_only=True)
class CompileOptions(DeviceOptions):
    """Options of `romou.compile`.

    `device`: the model keeps within the limits of an attached device that is chosen.
    """

    noun: ClassVar[str] = "option of compile"

    pad: Mapping[str, float] | None = _pad()
    verify: bool = option(
        True,
        """
        Run the model once, on the first calibration inputs or on random ones, and compare its outputs with
        onnxruntime's. `summary()` has the error and the device. The model runs on the attached device if `device` is
        given or if the target names none or this machine's CPU ("host"). For any other device, the same kernels run on
        the CPU's OpenCL or Vulkan, if there is one and the target's host is this machine. False: no check.
        """,
        help_text="Check the outputs against onnxruntime's, on the device or a CPU in its place.",
    )
    strict: bool = option(
        False,
        """
        Raise if a node has no kernel, instead of running the node on the host, by onnxruntime, between kernels.
        """,
        help_text="Fail where a node has no kernel, instead of running it on the host, by onnxruntime.",
    )
    max_memory: int | None = option(
        None,
        """
        Bytes of the device's memory that the model may take: weights, and everything between its kernels. Algorithms
        with workspaces give way. None: no limit.
        """,
        help_text="The most that the model may take of the device's memory.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_memory(self, self.max_memory)


@dataclass(frozen=True, kw_only=True)
class CheckOptions(DeviceOptions):
    """Options of `romou.check`."""

    noun: ClassVar[str] = "option of check"

    max_memory: int | None = option(
        None,
        "Bytes of the device's memory that the model may take. More is a problem. None: no limit.",
        help_text="The most that the model may take of the device's memory; more is exit code 1.",
    )
    max_ms: float | None = number(
        None,
        "Milliseconds that the estimate may be. More is a problem. None: no limit.",
        help_text="Milliseconds that the estimate may be; more is exit code 1.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_memory(self, self.max_memory)


@dataclass(frozen=True, kw_only=True)
class TuneOptions(DeviceOptions):
    """Options of `romou.tune`."""

    noun: ClassVar[str] = "option of tune"

    pad: Mapping[str, float] | None = _pad()
    target: Target | str | Mapping[str, object] = option(
        default="opencl",
        doc="""
        What to compile for, e.g. "opencl", "opencl -device=adreno640", "cuda". Candidates are measured on the attached
        device. With `rpc` the target has to name the device ("-device="), unless that is a CPU, and its host code is
        compiled for the server's machine.
        """,
        help_text='For example "opencl -device=host" or "opencl -device=adreno640".',
    )
    trials: int = whole(
        64,
        """
        Candidates to measure over all tasks, those found in `work_dir` included. 0 keeps the default schedules. The
        first ones are the default schedules of each task. Tasks that move less than 64 KiB and sum no products keep
        theirs without a trial. A depthwise convolution and the pointwise one behind it are two tasks and, as one
        kernel, a third one: the model takes whichever is faster. The same holds for attention, three tasks or one.
        """,
        lowest=0,
        help_text="Candidates to measure over all tasks; 0: default schedules.",
    )
    seconds: float | None = number(
        None,
        """
        Time of the call after the model is compiled: the search, and the choice, the checks and the times of the model
        after it. The model has the best configs until then.
        """,
        help_text="Time for search, checks and timing, after the model is compiled.",
    )
    no_progress: int | None = whole(
        None,
        "Stop searching after this many trials in a row without a 1% improvement of their task. None: go on.",
        help_text="Stop after so many trials without a kernel that is 1% faster.",
    )
    work_dir: str | Path | Literal[False] | None = option(
        None,
        """
        Folder of the records. A later call with the same folder continues from them, and from the kernels that an
        earlier call chose for the same model, target and device. Models that share a folder share
        measurements and learn from each other, even while running concurrently. None: a folder of the user's cache,
        named by the model's kernels and the target, so the same model for the same target continues
        (ROMOU_CACHE_DIR, else $XDG_CACHE_HOME/romou or ~/.cache/romou). `summary().records` has its path. False: no
        records are kept.
        """,
        help_text="Folder for records; a later run resumes from it.",
    )
    seed: int = option(
        0,
        "Seed of the search and of the inputs that candidates are checked with.",
        help_text="Seed of the search; the same seed tries the same candidates first.",
    )
    progress: bool | None = option(
        None, "Show a progress bar on stderr. None: if stderr is a terminal, or in a notebook."
    )
    database: bool = option(
        True,
        """
        Try the tuned schedules that ship with Romou right after the default schedules: the config of the same operator
        on the same device, or else of the most similar one. They count as trials and are checked like others.
        """,
        help_text="Try the tuned schedules that ship with Romou first.",
    )
    prune: bool = option(
        True,
        """
        Try only configs that make sense by the facts of the target's device (see `pruned_spaces`). The default
        schedules are tried in any case.
        """,
        help_text="Leave out configs that the device's facts make senseless (see romou space).",
    )
    l1: L1Rule = option(
        L1_CHOICES[0],
        """
        How pruning counts the bytes of one loop iteration against the first-level cache: "reread" counts data that a
        later iteration reads again, once for a work group. "paper" counts every byte for every work-item, as the Romou
        paper does. See docs/criteria.md.
        """,
        help_text="Bytes that count against the L1 cache: reread bytes, or every byte as in the Romou paper.",
        choices=L1_CHOICES,
    )
    allow_tf32: bool = option(
        False,
        """
        Kernels may multiply floats on tensor cores (CUDA, compute capability 8.0 and newer), which round them to TF32,
        10 bits behind the point. Sums stay in single precision. Such a kernel may differ from the reference by a
        relative L2 error of 2e-3 instead of 1e-4, the whole model's outputs from onnxruntime's by 1e-2. Equal to the
        target option -tf32=allow, which the other functions take: without it, records of such kernels do not count.
        """,
        help_text="CUDA: floats may be multiplied on tensor cores, which round them to 10 bits behind the point.",
    )
    variant: VariantName | None = option(
        None,
        """
        One of Boda's variants: "conv", "conv_simd", "conv_simd_buffered", "tconv", "k1conv", "k1conv_simd", "SGEMM",
        "SGEMM_buffered", "texture" or "texture_tconv" (docs/variants.md). Operators that have it keep to it, their
        default schedules included; others are tuned as ever. Equal to the target option -variant=NAME, which the other
        functions take.
        """,
        help_text="Operators that have this variant of Boda's keep to it, as with -variant=NAME in the target.",
        choices=tuple(VARIANTS),
        default_text="all",
    )
    explorer: ExplorerName = option(
        "evolution",
        """
        How configs are chosen: "evolution", "annealing" or "ranking" (of all configs, for small spaces), all guided by
        the cost model, "random" or "exhaustive".
        """,
        help_text="evolution, annealing, ranking, random or exhaustive: how candidates are chosen.",
    )
    rpc: str | None = option(
        None,
        """
        Where the devices are: "host:port/key" of an RPC server (`romou serve`), or "tracker://host:port/key" for all
        servers under a key of a tracker. Candidates are spread over them. The returned model runs there too.
        """,
        help_text=(
            "On devices elsewhere: host:port/key of `romou serve`, or tracker://host:port/key for all of a tracker's"
            " under a key. host:port/@FILE reads the key from a file, host:port from ROMOU_RPC_KEY."
        ),
        metavar="ADDRESS",
    )
    builders: str | None = option(
        None,
        """
        Where candidates are built: "dask://host:port" of a dask scheduler, whose workers run the same Romou and TVM.
        They may come and go. None: in processes of this machine. The results are the same. Over a network:
        "dask+tls://host:port", with certificates in dask's configuration.
        """,
        help_text="Build candidates on the workers of a dask scheduler, dask://host:port. [default: here]",
        metavar="ADDRESS",
    )
    trust_builders: bool = option(
        False,
        """
        Take a scheduler of another machine without TLS. The scheduler, and anybody between it and this machine, can run
        any code in this process.
        """,
        help_text="Take a scheduler of another machine without TLS, which can run any code here.",
    )
    measure: MeasureOptions | Mapping[str, object] | None = option(
        None,
        """
        Time limits in seconds and repeats of a measurement, as `MeasureOptions` or a mapping of its fields. Its seed
        replaces `seed` for the inputs.
        """,
        help_text="Any other field of romou.MeasureOptions: repeat=5. May be repeated.",
    )
    callback: TrialCallback | None = option(
        None,
        """
        Called with each finished `Trial`, after its record is kept. If it returns True, the search ends and the model
        is compiled with the best configs until then. An exception ends the search too and comes out of `tune`. A later
        call continues from the records.
        """,
    )
    verify: bool = option(
        True,
        """
        Raise if the tuned model's outputs are not onnxruntime's. False: the model is returned even so, with a warning,
        and `summary().is_right` is False.
        """,
        help_text="Fail where the outputs are not onnxruntime's; else warn, and save the model.",
    )
    strict: bool = option(
        False,
        """
        Raise if a node has no kernel, instead of running the node on the host, by onnxruntime, between kernels. This is
        always so with `rpc`. It may turn out after the first trials.
        """,
        help_text="Fail where a node has no kernel, instead of running it on the host, by onnxruntime.",
    )
    max_memory: int | None = option(
        None,
        """
        Bytes of the device's memory that the tuned model may take: weights, and everything between its kernels. If
        configs need more, those with the largest workspaces give way to a direct algorithm. None: no limit.
        """,
        help_text="The most that the model may take of the device's memory.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.callback is not None and not callable(self.callback):
            raise UsageError(f"callback={self.callback!r}: must be a function that takes a Trial")
        if self.l1 not in L1_CHOICES:
            raise unknown_name("value of l1", self.l1, L1_CHOICES)
        if not self.prune and self.l1 != L1_CHOICES[0]:
            raise UsageError(f"l1={self.l1!r} changes pruning, but prune is False", hint="Leave one of them out.")
        _check_memory(self, self.max_memory)

    def rules(self) -> Rules:
        """Return the parameters of the criteria."""
        from romou.compiler.operators.costs.criteria import L1_RULES

        return L1_RULES[self.l1]

    def parsed_target(self) -> Target:
        """Return the target, with the variant, and with TF32 if it is allowed."""
        target = super().parsed_target()
        if self.variant is not None:
            target = target.with_options(variant=self.variant)
        if not self.allow_tf32:
            return target
        if all(option.name != "tf32" for option in target.backend.options):
            raise UsageError(
                f"TF32 is a format of NVIDIA's tensor cores; the target is {str(target)!r}",
                hint="Leave allow_tf32 out, or use target 'cuda'.",
            )
        return target.with_options(tf32="allow")

    def search_options(self, target: Target) -> TuningOptions:
        """Return budget and seed of the search on a target."""
        from romou.tuner.search import TuningOptions

        return TuningOptions(
            trials=self.trials,
            no_progress=self.no_progress,
            explorer=self.explorer,
            seed=self.seed,
            **target.backend.search_options,
        )

    def measure_options(self) -> MeasureOptions:
        """Return limits and repeats of measurements."""
        from romou.tuner.measure import MeasureOptions

        if isinstance(self.measure, MeasureOptions):
            return self.measure
        if not isinstance(self.measure, Mapping | None):
            raise UsageError(f"measure={self.measure!r}: expected MeasureOptions or a mapping of its fields")
        usual = self.parsed_target().backend.measure_options
        return MeasureOptions.from_dict({"seed": self.seed, **usual, **(self.measure or {})})

    def address(self) -> Address | None:
        """Return the address of the devices. None for the attached one."""
        from romou.runtime.rpc import Address

        return None if self.rpc is None else Address.parse(self.rpc)


@dataclass(frozen=True, kw_only=True)
class PhoneRecordOptions(TargetOptions):
    """Options of `romou phone record`."""

    noun: ClassVar[str] = "option of phone record"

    target: Target | str | Mapping[str, object] = option(
        default="opencl",
        doc="Kind of the device. It has to name the device if its driver's name for it is not known.",
        help_text='"opencl" or "vulkan"; "opencl -device=NAME" for a device that does not say its name.',
    )
    rpc: str | None = option(
        None,
        'Where the device is: "host:port/key" of an RPC server.',
        help_text=(
            "The phone: the address that `romou phone start` or `romou serve` prints, host:port/key. host:port/@FILE"
            " reads the key from a file, host:port from ROMOU_RPC_KEY."
        ),
        metavar="ADDRESS",
    )
    minutes: float = number(
        10.0,
        "Time for all of it. What is missing then is measured by another call with the same file.",
        help_text="Time for all of it; another call with the same file goes on.",
    )
    archprobe: bool = option(
        True,
        "Run ArchProbe's quick set first, for at most a quarter of the time.",
        help_text="Run ArchProbe's quick set first, for at most a quarter of the time.",
    )
    seed: int = option(
        0, "Seed of the random configs and of the inputs.", help_text="Seed of the random configs and of the inputs."
    )

    def address(self) -> Address:
        """Return the address of the device. UsageError if there is none, or if it is a tracker."""
        from romou.runtime.rpc import Address

        if self.rpc is None:
            hint = "`romou phone start` and `romou serve` print the address."
            raise UsageError("no address of a phone is given: --rpc HOST:PORT/KEY", hint=hint)
        address = Address.parse(self.rpc)
        if address.is_tracker:
            raise UsageError(f"{address} may be several phones; a recording is of one", hint="Write its host:port/key.")
        return address


@dataclass(frozen=True, kw_only=True)
class RecordedOptions(ModelOptions):
    """Options of the functions that read a model with its recorded configs: `romou.memory_plan`, `dump_stages`."""

    noun: ClassVar[str] = "option"

    work_dir: str | Path | None = option(
        None,
        """
        Folder of the records of `tune`: a task with a measured candidate gets the config of the fastest one, whatever
        device it was measured on. None: default schedules.
        """,
        help_text="Folder of tune's records: show the best configs.",
    )


@dataclass(frozen=True, kw_only=True)
class InspectOptions(RecordedOptions):
    """Options of `romou.inspect`."""

    noun: ClassVar[str] = "option of inspect"

    kernel: str | None = option(
        None,
        "Name of one kernel, of the function that it belongs to, or of a task. All others are left out.",
        help_text="Only this kernel, function or task. [default: all]",
    )
    passes: bool = option(
        False, "Keep the IR before and after each pass.", help_text="Show the IR before and after each pass."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel is not None:
            instance_of("kernel", self.kernel, str)


@dataclass(frozen=True, kw_only=True)
class SpaceOptions(ModelOptions):
    """Options of `romou.pruned_spaces`."""

    noun: ClassVar[str] = "option of pruned_spaces"

    rules: Rules | None = option(
        None,
        """
        Choices that the criteria leave open, e.g. `Rules(count_per_work_item=True)` to count bytes as the paper does.
        """,
    )


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ImportOptions):
    """Options of `romou.write_report`."""

    output: str | Path = option("report.html", "The page's file.", help_text="The page.")
    model: onnx.ModelProto | str | Path | None = option(
        None,
        """
        The ONNX file, the loaded model, or "bundled:NAME", that was tuned. Without it the figures on kernels stay
        empty: records hold no kernels.
        """,
        help_text="The ONNX file or bundled:NAME that was tuned; without it nothing is known of its kernels.",
    )
    target: Target | str | Mapping[str, object] | None = option(
        None,
        "What it was tuned for. None: what the sources say.",
        help_text="What it was tuned for. [default: what SOURCES say]",
    )
    precision: PrecisionName | None = option(  # type: ignore[assignment]
        None,
        """
        What the model was tuned with, as in `tune`. Kernels are others in fp16. None: the precision of the saved model
        among the sources, else "float32".
        """,
        help_text=_PRECISION,
        choices=PRECISIONS,
        default_text="what SOURCES say",
    )

    def parsed_precision(self, otherwise: str = PRECISIONS[0]) -> Precision:
        """Return precision, io_precision and calibration, checked. otherwise: the precision if none is given."""
        from romou.compiler.frontend import Precision

        return Precision.checked(self.precision or otherwise, self.io_precision, self.calibration)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(DeviceOptions):
    """Options of `romou.bench`."""

    noun: ClassVar[str] = "option of bench"

    target: Target | str | Mapping[str, object] = option(
        default="opencl",
        doc="What to compile for, as in `tune`.",
        help_text='For example "opencl -device=host" or "opencl -device=adreno640".',
    )
    work_dir: str | Path | None = option(
        None,
        """
        Folder of the records of `tune`: a task with a record of the attached device gets its best config. None: default
        schedules.
        """,
        help_text="Folder of tune's records: best configs, not default ones.",
    )
    repeats: int = whole(
        16,
        """
        Rounds, at least 8. In each, every operator and the whole model are timed once more, in random order, three
        repeats by the device's events.
        """,
        help_text="Rounds; in each, everything is timed once more.",
        lowest=8,
        why="fewer can prove no difference",
    )
    seed: int = option(
        0,
        "Seed of the inputs and of the order of the measurements.",
        help_text="Seed of the inputs and of the order of the measurements.",
    )
    times: bool = option(
        True,
        "False: only what can be read off the kernels. This needs no device for a target that names one.",
        help_text="Without times no device is needed.",
    )
    label: str | None = option(None, "Name of the model in the bench. None: its path, or the graph's name.")
    rpc: str | None = option(
        None,
        'Where the device is, as in `tune`: "host:port/key" or "tracker://host:port/key". None: the attached one.',
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ImportOptions):
    """Options of `romou.compare`."""

    noun: ClassVar[str] = "option of compare"

    device: int | str | None = option(
        None,
        "The attached device to time on, by its number in `romou devices` or a part of its name. None: the first one.",
        help_text="Attached device by number or name (1, intel). [default: the first]",
        metavar="NAME",
    )
    fail_over: float | str = option(
        "5%",
        'Share by which a time or a measure may rise: 0.05 or "5%".',
        help_text="Share by which a time or a measure may rise.",
    )
    work_dir: str | Path | None = option(
        None,
        "Folder of the records of `tune`, to take configs from. None: the baseline's configs.",
        help_text="Records to take configs from. [default: BASELINE's configs]",
    )
    repeats: int = whole(
        16,
        "Pairs that are timed at first, at least 8. Open cases are measured with up to four times as many.",
        help_text="Pairs that are timed at first; what stays open gets more.",
        lowest=8,
        why="fewer can prove no difference",
    )
    seed: int = option(
        0,
        "Seed of the inputs and of the order of the measurements.",
        help_text="Seed of the inputs and of the order of the measurements.",
    )
    times: bool = option(True, "False: leave times out.")
    measures: bool = option(True, "False: leave measures out.")
    recorded: bool = option(
        False,
        "Compare recorded times, even if both could be timed now.",
        help_text="Compare the times in the files, even where both could be timed now.",
    )
    label: str | None = option(None, "Name of the current model. None: its path, or the graph's name.")
    rpc: str | None = option(
        None,
        """
        Where the device is, as in `tune`: "host:port/key" or "tracker://host:port/key". None: the attached one. Both
        sides share one session.
        """,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.times and not self.measures:
            raise UsageError("neither times nor measures are left to compare")


def _check_memory(options: CheckedOptions, max_memory: object) -> None:
    """Raise UsageError unless `max_memory` is a whole number above zero. NumPy's become Python's."""
    if max_memory is not None:
        object.__setattr__(options, "max_memory", whole_of("max_memory", max_memory, lowest=1))
