"""Images and autobroadcast as knobs of element-wise kernels (Romou paper, Listing 4)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, te
from tvm.relax import op

import romou
from romou.compiler.operators.costs.estimate import estimate_seconds
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.pruning.tasks import pruned_space
from support.devices.platforms import INTEL, RUSTICL, Platform
from support.kernels.operators import assert_agrees, random_arrays, reference, relax_tasks
from support.kernels.streams import OPERATORS, WITH_SCALARS
from support.models.small_networks import NetworkBuilder
from support.servers import forked
from support.suite.exhaustive import exhaustive, few

KNOBS = ("data", "output", "autobroadcast")
# Limits of a phone. PoCL, Intel's OpenCL and rusticl have images of the same size.
PHONE = Target("opencl -device=adreno640 -half=storage")
TOLERANCE = {"float32": 1e-5, "float16": 2e-3}
TEXELS, ROWS = "global.texture", "global.texture-rows"
# Case, type -> memory scopes of inputs and output in images. Both types of texels; the other cases in one type each.
CHECKED: dict[tuple[str, str], tuple[dict[str, str], str]] = {
    ("texels", "float32"): ({"x0": TEXELS, "x2": TEXELS}, TEXELS),
    ("texels", "float16"): ({"x0": TEXELS, "x2": TEXELS}, TEXELS),
    ("rows", "float16"): ({"x0": ROWS}, ROWS),
    ("packed", "float32"): ({}, TEXELS),
}


def free_task(name: str, dtype: str = "float32") -> TunableTask:
    (task,) = relax_tasks(*WITH_SCALARS[name], dtype=dtype)
    return task.with_free_images()


def check_every_choice(name: str, dtype: str, target: Target = PHONE) -> None:
    """Compare the kernel of every choice with the plain function in fp32. Outputs are poisoned before."""
    task, plain = free_task(name, dtype), free_task(name)
    arrays = random_arrays(task, np.random.default_rng(20))
    expected = reference(plain, [a.astype("float32") for a in arrays])
    space, (inputs, output) = task.space(target), CHECKED[name, dtype]
    choices = {knob: space.knobs[knob] for knob in KNOBS if knob in space.knobs}
    assert choices == {
        **({"data": ("buffer", "image")} if inputs else {}),
        "output": ("buffer", "image"),
        "autobroadcast": (False, True),
    }
    for number, values in enumerate(itertools.product(*choices.values())):
        knobs = dict(zip(choices, values, strict=True))
        config = task.default_config(target).replace(**knobs, items=1 + number % 2, work_group=16)
        assert space.is_valid(config), config
        scopes = inputs if knobs.get("data") == "image" else {}
        written = {str(task.func.params[-1].name): output} if knobs["output"] == "image" else {}
        assert task.image_scopes(config, target) == {**scopes, **written}
        assert_agrees(target, task, config, arrays, expected, TOLERANCE[dtype])


@pytest.mark.parametrize(("name", "dtype"), few(CHECKED, 1, 3))
def test_every_choice_gives_the_same_numbers(name: str, dtype: str, opencl_device: tvm.runtime.Device) -> None:
    check_every_choice(name, dtype)


def test_every_choice_gives_the_same_numbers_in_vulkan(vulkan_device: tvm.runtime.Device) -> None:
    check_every_choice("texels", "float32", Target("vulkan -device=adreno640"))


@pytest.mark.parametrize(
    ("platform", "cases"),
    [
        (INTEL, [("texels", "float16")]),
        (RUSTICL, [("texels", "float32")]),
        *(pytest.param(platform, list(CHECKED), marks=exhaustive) for platform in (INTEL, RUSTICL)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_choice_gives_the_same_numbers_elsewhere(
    platform: Platform, cases: list[tuple[str, str]], pytestconfig: pytest.Config
) -> None:
    platform.require(pytestconfig)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import tvm, test_elementwise_knobs as t\n"
        f"for case in {cases}: t.check_every_choice(*case)\n"
        "print('checked on', t.PHONE.backend.facts(0)['name'])"
    )
    done = forked.run("-c", code, env=platform.environment())
    assert done.returncode == 0, done.stderr
    assert "checked on" in done.stdout


def test_scalars_are_written_bare_and_images_are_read_in_texels() -> None:
    task = free_task("texels")
    for place, is_bare in itertools.product(("buffer", "image"), (False, True)):
        config = task.default_config(PHONE).replace(data=place, output=place, autobroadcast=is_bare)
        (kernel,) = inspect_function(task.schedule(config, PHONE)["main"], PHONE, config=config)
        assert kernel.source.count("(float4)(") == (0 if is_bare else 2), kernel.source
        in_images = [len(re.findall(call, kernel.source)) for call in (r"IMAGEF\(x\d_ptr", r"write_imagef\(")]
        assert in_images == ([2, 1] if place == "image" else [0, 0]), kernel.source


@pytest.mark.parametrize(
    ("target", "free", "in_graph"),
    [
        ("opencl -device=adreno640", KNOBS, KNOBS[2:]),
        ("opencl -device=mali_g76", KNOBS, KNOBS[2:]),
        # Not known to gain by it
        ("opencl -device=adreno740", KNOBS[:2], ()),
        ("opencl -device=adreno640 -images=never", (), ()),
        ("opencl -device=host", (), ()),
        ("vulkan -device=adreno640", KNOBS, KNOBS[2:]),
        ("cuda -device=nvidia_h200", (), ()),
    ],
)
def test_spaces_that_have_the_knobs(target: str, free: tuple[str, ...], in_graph: tuple[str, ...]) -> None:
    (task,) = relax_tasks(*WITH_SCALARS["texels"])
    for one, offered in ((task.with_free_images(), free), (task, in_graph)):
        config = one.default_config(Target(target))
        assert tuple(knob for knob in KNOBS if knob in config) == offered
        # The default config is the kernel of a space without images, and copies no scalar where that is known to pay.
        assert {config.get(knob) for knob in KNOBS} <= {None, "buffer", True}


@pytest.mark.parametrize("name", ["transpose", "concat", "slice"])
def test_moves_have_no_scalars(name: str) -> None:
    (task,) = relax_tasks(*OPERATORS[name])
    assert "autobroadcast" not in task.space(PHONE).knobs


def test_copies_are_pruned_where_a_report_shows_that_they_cost() -> None:
    """A constant is no copy: its registers hold nothing that a scalar would not."""
    kept = {config["autobroadcast"] for config in pruned_space(free_task("texels"), PHONE)}
    (constant,) = relax_tasks(*OPERATORS["leaky relu"])
    assert kept == {True}
    assert {config["autobroadcast"] for config in pruned_space(constant, PHONE)} == {False, True}


def test_a_computation_of_the_user_is_tuned_over_both(
    opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable")

    def add_number(a: te.Tensor) -> te.Tensor:
        return te.compute(a.shape, lambda *i: a[i] + te.const(3, "float32"), name="b")

    operator = romou.operators.from_te(add_number, {"a": (1, 3, 7, 5, 4)})
    done: list[romou.Trial] = []
    tuned = romou.tune(operator, target=PHONE, trials=2, work_dir=False, callback=done.append)
    assert tuned.summary().outcomes == {"ok": 2}
    places = {tuple(trial.config[knob] for knob in KNOBS[:2]) for trial in done}
    assert any("image" in place for place in places), places
    x = np.random.default_rng(1).standard_normal((1, 3, 7, 5, 4)).astype("float32")
    np.testing.assert_array_equal(tuned.run({"a": x})[0], x + np.float32(3))


def in_a_model(*, has_convolutions: bool) -> dict[str, str]:
    """Return the kernels of x + 3 on an Adreno 640, alone or between convolutions whose sums it is no part of."""
    g = NetworkBuilder({"x": (1, 16, 32, 32)})
    weight, three = g.weight(16, 16, 1, 1), g.constant(np.array(3, "float32"))
    if not has_convolutions:
        model = g.model(g.add("Add", "x", three))
    else:
        first = g.add("Conv", "x", weight)
        after = g.add("Conv", g.add("Add", first, three), weight)
        model = g.model(g.add("Add", after, g.add("Conv", first, weight)))
    return romou.compile(model, target=PHONE, verify=False).sources()


def test_listing_4_in_a_model_is_in_images_where_its_neighbours_are_and_copies_no_scalar() -> None:
    """Inputs and outputs of a model are buffers: an image would cost two copies, each as long as the sum."""
    alone, between = (in_a_model(has_convolutions=has)["add_kernel"] for has in (False, True))
    assert "T_add_ptr[at] = (x_ptr[at] + (3.000000e+00f));" in alone
    assert "image2d" not in alone
    assert re.search(r"float4 texel = \(v_ \+ \(3.0+e\+00f\)\);\s+write_imagef\(T_add_ptr", between)
    (task,) = relax_tasks(lambda a: op.add(a, relax.const(3.0, "float32")), (1, 16, 32, 32, 4))
    task = task.with_free_images()
    seconds = {
        (data, output): estimate_seconds(
            task.usage_of(task.default_config(PHONE).replace(data=data, output=output), PHONE), PHONE.spec
        )
        for data, output in itertools.product(("buffer", "image"), repeat=2)
    }
    copies = seconds["buffer", "image"] + seconds["image", "buffer"]
    assert seconds["image", "image"] <= seconds["buffer", "buffer"] < copies + seconds["image", "image"]


def test_integers_keep_their_copies() -> None:
    (task,) = relax_tasks(lambda a, b: op.multiply(a, b), (5, 24), (5, 1), dtype="int8")
    assert "autobroadcast" not in task.space(PHONE).knobs


def test_positions_that_are_read_are_known_at_run_time_only(opencl_device: tvm.runtime.Device) -> None:
    """A resize by scales of the caller reads at positions that no formula knows. They are clamped."""
    text = """<ir_version: 10, opset_import: ["" : 19]>
        one (float[1, 1, 2, 2] x, float[4] scales) => (float[1, 1, 4, 6] y) {
            y = Resize<mode = "nearest">(x, , scales)
        }"""
    model = romou.compile(onnx.parser.parse_model(text), target="opencl -device=host")
    assert {row.name.split("_")[0] for row in model.summary().rows} == {"elementwise"}
    x = np.arange(4, dtype="float32").reshape(1, 1, 2, 2)
    (y,) = model.run({"x": x, "scales": np.array([1, 1, 2, 3], "float32")})
    np.testing.assert_array_equal(y, x.repeat(2, 2).repeat(3, 3))
