"""Options of the functions that take a model. Each option is described once, for Python and for the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from romou.base.arguments import instance_of, whole_of
from romou.base.checked_options import CheckedOptions, number, option, whole
from romou.base.errors import UsageError, unknown_name
from romou.base.variants import VARIANTS, VariantName

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import onnx

    from romou.compiler.frontend.imported import ImportedModel
    from romou.compiler.frontend.precision import Precision
    from romou.compiler.frontend.shape_sets import Shapes
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
    "float16: an fp32 model becomes fp16 inside. mixed: sensitive nodes stay fp32. float32: the model's own types."
)


@dataclass(frozen=True, kw_only=True)
class ImportOptions(CheckedOptions):
    """Options of a model's import: shapes, constants, and the precision that it computes with."""

    shapes: Shapes | Sequence[Shapes] | None = option(
        None,
        "Shape by name, for inputs that the model leaves open. `tune`, `compile` and `romou bench` take several.",
        "A list of such shapes makes a `MultiShapeModel`. See `romou docs shapes`.",
    )
    dims: Mapping[str, int | Sequence[int] | Sequence[range]] | None = option(
        None,
        "Size by name, for dimensions that the model names. `tune`, `compile` and `romou bench` take several sizes,"
        " `tune` and `compile` also a size at run time, of one dimension or several.",
        """
        Several sizes: {"tokens": (32, 128)}. At run time: {"tokens": range(1, 513)}, with kernels for each class of
        sizes if it is a list of such ranges, or if the rows of products with packed weights have the size. `shapes`
        precedes.
        """,
    )
    constants: Mapping[str, object] | None = option(
        None,
        "Value by name, for inputs that become constants of the model, which then lacks them.",
        "Conditions and counts that depend on them are folded.",
    )
    precision: PrecisionName = option(
        "float32",
        _PRECISION,
        "Sensitive nodes are found by a check of the whole model against onnxruntime. See `romou docs precision`.",
        choices=PRECISIONS,
    )
    io_precision: IoPrecisionName | None = option(
        None,
        "float16: float inputs and outputs are fp16, too.",
        unset="the model's types",
        choices=get_args(IoPrecisionName),
    )
    calibration: Sequence[Mapping[str, np.ndarray]] | None = option(
        None,
        "Inputs on which ranges and errors are measured, by name. The outputs are checked on the first.",
        unset="random ones",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parsed_precision()

    def parsed_precision(self) -> Precision:
        """Return precision, io_precision and calibration, checked."""
        from romou.compiler.frontend.precision import Precision

        return Precision.checked(self.precision, self.io_precision, self.calibration)

    @property
    def listed_dims(self) -> Mapping[str, Sequence[int] | Sequence[range]]:
        """Sizes of each dimension in `dims`, checked: numbers, or classes of sizes at run time."""
        from romou.compiler.frontend.shape_sets import listed_sizes

        dims = self.dims if isinstance(self.dims, Mapping) else {}
        return {str(name): listed_sizes(str(name), sizes) for name, sizes in dims.items()}

    @property
    def run_time_dims(self) -> dict[str, list[range]]:
        """The dimensions with a size at run time, and their classes."""
        dims = {name: [each for each in sizes if isinstance(each, range)] for name, sizes in self.listed_dims.items()}
        return {name: classes for name, classes in dims.items() if classes}

    def shape_sets(self, model: AnyModel) -> tuple[AnyModel, list[Shapes]]:
        """Return the model with its constants, and each shape that it is compiled for."""
        from romou.compiler.frontend.constants_given import with_constants
        from romou.compiler.frontend.imported import ImportedModel
        from romou.compiler.frontend.onnx_file import load_onnx
        from romou.compiler.frontend.shape_sets import shape_sets

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
        text='What to compile for: "opencl", "opencl -device=adreno640", "cuda".',
        more="""
        A target that names a device needs none attached, unless something is measured. `tune` with `rpc` takes only
        such a target, or a CPU's, and compiles its host code for the server's machine.
        """,
    )

    def parsed_target(self) -> Target:
        """Return the target that `target` describes."""
        from romou.devices.targets import Target

        return self.target if isinstance(self.target, Target) else Target(self.target)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ImportOptions, TargetOptions):
    """Options of a model's import, and its target with a device."""

    device: int | str | None = option(
        None,
        "Attached device by its number in `romou devices` or a part of its name or platform (1, vulkan:0, intel), or"
        " GPU, phone or SoC to compile for (adreno740, 'Pixel 8', sm8550).",
        """
        A GPU need not be attached: its name is the same as `-device=` in the target. A system on a chip has two names,
        "Snapdragon 8 Gen 2" and "SM8550".
        """,
        unset="the target's, or the first attached one",
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

    def limited_target(self) -> Target:
        """Return the target, within the limits of the attached device that `device` chooses, if it chooses one."""
        target, index = self.parsed_target(), self.device_index()
        return target if index is None else target.limited_to(target.backend.facts(index))


@dataclass(frozen=True, kw_only=True)
class LimitedOptions(ModelOptions):
    """Options of a model's import, and its device with a limit of memory."""

    max_memory: int | None = option(
        None,
        "The most of the device's memory that the model may take: weights, and everything between its kernels.",
        "In bytes. Algorithms with workspaces give way, the largest first. For `check`, more is a problem.",
        unset="no limit",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_memory is not None:
            # A whole number of NumPy's becomes Python's.
            object.__setattr__(self, "max_memory", whole_of("max_memory", self.max_memory, lowest=1))


@dataclass(frozen=True, kw_only=True)
class CompileOptions(LimitedOptions):
    """Options of `romou.compile`.

    `device`: the model keeps within the limits of an attached device that is chosen.
    """

    pad: Mapping[str, float] | None = option(
        None,
        "Value by name, for inputs that are padded if a run's shape is between those given.",
        """
        It follows their elements: {"ids": 0, "mask": 0} for token ids and their mask. The next larger shape runs, and
        outputs are cut.
        """,
        unset="only the shapes given run",
    )
    verify: bool = option(
        True,
        "Run the model once, and compare its outputs with onnxruntime's: on the device, or on a CPU in its place.",
        """
        It runs on the first calibration inputs, else on random ones. `summary()` has the error and the device. The
        model runs on the attached device if `device` is given or if the target names none or this machine's CPU
        ("host"). For any other device, the same kernels run on the CPU's OpenCL or Vulkan, if there is one and the
        target's host is this machine.
        """,
    )
    strict: bool = option(
        False,
        "Fail if a node has no kernel, instead of running the node on the host, by onnxruntime, between kernels.",
        "`tune` with `rpc` always does. There it may turn out after the first trials.",
    )


@dataclass(frozen=True, kw_only=True)
class CheckOptions(LimitedOptions):
    """Options of `romou.check`. More memory or time than the limits is a problem, exit code 1 of the command."""

    max_ms: float | None = number(
        None, "Milliseconds that the estimate may be. More is a problem, exit code 1.", unset="no limit"
    )


@dataclass(frozen=True, kw_only=True)
class RpcOptions(CheckedOptions):
    """The option `rpc`."""

    rpc: str | None = option(
        None,
        "Where the devices are: host:port/key of `romou serve`, or tracker://host:port/key for all of a tracker's under"
        " a key. host:port/@FILE reads the key from a file, host:port from ROMOU_RPC_KEY.",
        "`tune` spreads candidates over them, and its model runs there, too. Both sides of `compare` share a session.",
        unset="the attached one",
        metavar="ADDRESS",
    )

    def address(self) -> Address | None:
        """Return the address of the devices. None for the attached one."""
        from romou.runtime.rpc import Address

        return None if self.rpc is None else Address.parse(self.rpc)


@dataclass(frozen=True, kw_only=True)
class TuneOptions(RpcOptions, CompileOptions):
    """Options of `romou.tune`."""

    trials: int = whole(
        64,
        "Candidates to measure over all tasks, those found in the records included. 0: default schedules.",
        """
        The first ones are the default schedules of each task. Tasks that move less than 64 KiB and sum no products keep
        theirs without a trial. A depthwise convolution and the pointwise one after it are two tasks and, as one kernel,
        a third one: the model takes whichever is faster. The same holds for attention, three tasks or one.
        """,
        lowest=0,
    )
    seconds: float | None = number(
        None,
        "Time for search, checks and timing, after the model is compiled.",
        "The model has the best configs until then.",
        unset="no limit",
    )
    no_progress: int | None = whole(
        None, "Stop searching after this many trials in a row without a 1% improvement of their task.", unset="go on"
    )
    work_dir: str | Path | Literal[False] | None = option(
        None,
        "Folder of the records. A later call with the same folder continues from them.",
        """
        It also continues from the kernels that an earlier call chose for the same model, target and device. Models that
        share a folder share measurements and learn from each other, even while running concurrently. The user's cache
        is ROMOU_CACHE_DIR, else $XDG_CACHE_HOME/romou or ~/.cache/romou. `summary().records` has the path. False: no
        records are kept.
        """,
        unset="one of the user's cache, named by the model's kernels and the target",
    )
    seed: int = option(0, "Seed of the search, and of the inputs that candidates are checked with.")
    progress: bool | None = option(
        None, "Show a progress bar on stderr.", unset="if stderr is a terminal, or in a notebook"
    )
    database: bool = option(
        True,
        "Try the tuned schedules that ship with Romou right after the default schedules.",
        """
        That is the config of the same operator on the same device, or else of the most similar one. They count as
        trials and are checked like others.
        """,
    )
    prune: bool = option(
        True,
        "Leave out configs that make no sense by the facts of the target's device (`romou space`).",
        "The default schedules are tried in any case. See `pruned_spaces`.",
    )
    l1: L1Rule = option(
        L1_CHOICES[0],
        "How pruning counts bytes against the L1 cache: reread: data that is read again, once for a work group. paper:"
        " every byte for every work-item, as in the Romou paper.",
        "They are the bytes of one loop iteration. See `romou docs criteria`.",
        choices=L1_CHOICES,
    )
    allow_tf32: bool = option(
        False,
        "CUDA: floats may be multiplied on tensor cores, which round them to TF32, 10 bits after the point.",
        """
        It takes compute capability 8.0 or newer. Sums stay in single precision. Such a kernel may differ from the
        reference by a relative L2 error of 2e-3 instead of 1e-4, the whole model's outputs from onnxruntime's by 1e-2.
        Equal to the target option -tf32=allow, which the other functions take: without it, records of such kernels do
        not count.
        """,
    )
    variant: VariantName | None = option(
        None,
        "Operators that have this variant of Boda's keep to it, as with -variant=NAME in the target.",
        f"One of {', '.join(VARIANTS)} (`romou docs variants`). Other operators are tuned as ever.",
        unset="all",
        choices=tuple(VARIANTS),
    )
    explorer: ExplorerName = option(
        "evolution",
        "How candidates are chosen: evolution, annealing, ranking, random or exhaustive.",
        "The first three are guided by the cost model. Ranking is of all configs, for small spaces.",
    )
    builders: str | None = option(
        None,
        "Build candidates on the workers of a dask scheduler, dask://host:port.",
        """
        They run the same Romou and TVM, and may come and go. The results are the same. Over a network:
        "dask+tls://host:port", with certificates in dask's configuration.
        """,
        unset="in processes of this machine",
        metavar="ADDRESS",
    )
    trust_builders: bool = option(
        False,
        "Take a scheduler of another machine without TLS. It can run any code in this process.",
        "So can anybody between it and this machine.",
    )
    measure: MeasureOptions | Mapping[str, object] | None = option(
        None,
        "Time limits in seconds and repeats of a measurement: any other field of `romou.MeasureOptions`.",
        "As an object or a mapping. Its seed replaces `seed` for the inputs.",
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
        "Fail if the outputs are not onnxruntime's. Else the model is returned or saved even so, with a warning.",
        "`summary().is_right` is False then.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.callback is not None and not callable(self.callback):
            raise UsageError(f"callback={self.callback!r}: must be a function that takes a Trial")
        if self.l1 not in L1_CHOICES:
            raise unknown_name("value of l1", self.l1, L1_CHOICES)
        if not self.prune and self.l1 != L1_CHOICES[0]:
            raise UsageError(f"l1={self.l1!r} changes pruning, but prune is False", hint="Leave one of them out.")

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


@dataclass(frozen=True, kw_only=True)
class PhoneRecordOptions(RpcOptions, TargetOptions):
    """Options of `romou phone record`."""

    target: Target | str | Mapping[str, object] = option(
        default="opencl",
        text='Kind of the device: "opencl", "vulkan", or "opencl -device=NAME" for one that does not say its name.',
    )
    rpc: str | None = option(
        None,
        "The phone: the address that `romou phone start` or `romou serve` prints, host:port/key. host:port/@FILE"
        " reads the key from a file, host:port from ROMOU_RPC_KEY.",
        metavar="ADDRESS",
    )
    minutes: float = number(10.0, "Time for all of it. Another call with the same file goes on.")
    archprobe: bool = option(True, "Run ArchProbe's quick set first, for at most a quarter of the time.")
    seed: int = option(0, "Seed of the random configs and of the inputs.")

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

    work_dir: str | Path | None = option(
        None,
        "Folder of the records of `tune`, to take the best configs from.",
        "A task with a measured candidate gets the config of the fastest one, whatever device it was measured on.",
        unset="default schedules",
    )


@dataclass(frozen=True, kw_only=True)
class InspectOptions(RecordedOptions):
    """Options of `romou.inspect`."""

    kernel: str | None = option(
        None, "Name of one kernel, of the function that it belongs to, or of a task.", unset="all"
    )
    passes: bool = option(False, "Show the IR before and after each pass.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel is not None:
            instance_of("kernel", self.kernel, str)


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(InspectOptions):
    """Options of `romou.simulate`."""

    gpu: str | None = option(None, "Adreno whose machine code runs, e.g. `a630`.", unset="that of the target")
    work_items: int = whole(
        1 << 16,
        "Work-items of a kernel that run, about: work groups are left out evenly. 0 for all.",
        lowest=0,
    )


@dataclass(frozen=True, kw_only=True)
class SpaceOptions(ModelOptions):
    """Options of `romou.pruned_spaces`."""

    rules: Rules | None = option(
        None,
        "Choices that the criteria leave open.",
        "E.g. `Rules(count_per_work_item=True)` to count bytes as the paper does.",
    )


@dataclass(frozen=True, kw_only=True)
class ChartsOptions(ModelOptions):
    """Options of `romou.charts`."""

    model: onnx.ModelProto | str | Path | None = option(
        None,
        "The model that was tuned: its ONNX file, or bundled:NAME. Without it the figures on kernels stay empty.",
        "Or the loaded model. Records hold no kernels.",
    )
    target: Target | str | Mapping[str, object] | None = option(  # type: ignore[assignment]
        None, "What it was tuned for.", unset="what the sources say"
    )
    precision: PrecisionName | None = option(  # type: ignore[assignment]
        None,
        _PRECISION,
        "What the model was tuned with: kernels are others in fp16.",
        unset="what a saved model among the sources says, else float32",
        choices=PRECISIONS,
    )

    def parsed_precision(self, otherwise: str = PRECISIONS[0]) -> Precision:
        """Return precision, io_precision and calibration, checked. otherwise: the precision if none is given."""
        from romou.compiler.frontend.precision import Precision

        return Precision.checked(self.precision or otherwise, self.io_precision, self.calibration)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ChartsOptions):
    """Options of `romou.write_report`."""

    output: str | Path = option("report.html", "The page's file.")


@dataclass(frozen=True, kw_only=True)
class RoundsOptions(RpcOptions):
    """Options of a measurement in rounds: `romou.bench` and `romou.compare`."""

    work_dir: str | Path | None = option(
        None,
        "Folder of the records of `tune`, to take the best configs from.",
        "A task with a record of the attached device gets its best config.",
        unset="default schedules, or the baseline's configs",
    )
    repeats: int = whole(
        16,
        "Rounds, at least 8. In each, everything is timed once more.",
        """
        `bench` times every operator and the whole model, in random order, by three repeats of the device's events.
        `compare` times pairs, and measures open cases with up to four times as many.
        """,
        lowest=8,
        why="fewer can prove no difference",
    )
    seed: int = option(0, "Seed of the inputs and of the order of the measurements.")
    times: bool = option(
        True,
        "Measure times. Without them, only what can be read off the kernels is there, and a target that names a device"
        " needs none attached.",
    )
    label: str | None = option(None, "Name of the model in the bench.", unset="its path, or the graph's name")


@dataclass(frozen=True, kw_only=True)
class BenchOptions(RoundsOptions, ModelOptions):
    """Options of `romou.bench`."""

    gpu: str | None = option(
        None,
        "Mobile GPU whose compiler in Mesa counts the instructions, registers, spills and bytes of each kernel.",
        "A name of `romou inspect --gpu`, or `own`: the target's GPU.",
        unset="no counts",
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(RoundsOptions, ImportOptions):
    """Options of `romou.compare`."""

    device: int | str | None = option(
        None,
        "Attached device to time on, by its number in `romou devices` or a part of its name (1, intel).",
        unset="the first",
        metavar="NAME",
    )
    fail_over: float | str = option("5%", 'Share by which a time or a measure may rise: 0.05 or "5%".')
    measures: bool = option(True, "False: leave measures out.")
    recorded: bool = option(False, "Compare recorded times, even if both could be timed now.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.times and not self.measures:
            raise UsageError("neither times nor measures are left to compare")
