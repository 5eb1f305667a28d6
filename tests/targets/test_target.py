"""Target text, dicts and TVM targets: the accepted forms, their round trip, and the text of every error."""

from __future__ import annotations

import pickle
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romou.base.errors import UsageError
from romou.devices.backends import backend, installed
from romou.devices.hardware import known_devices
from romou.devices.targets import Target

LIMITS = backend("opencl").limit_names
PHONES = ("adreno630", "adreno640", "mali_g76")


@st.composite
def target_texts(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(list(installed())))
    names = backend(kind).named_devices()
    options = [f"-device={draw(st.sampled_from(names))}"] if draw(st.booleans()) else []
    limits = draw(st.dictionaries(st.sampled_from(("", *backend(kind).limit_names)), st.integers(1, 1 << 20)))
    options += [f"-{name}={value}" for name, value in limits.items() if name]
    if kind == "cuda" and draw(st.booleans()):
        options.append(f"-arch={draw(st.sampled_from(['sm_80', 'sm_90a']))}")
    if draw(st.booleans()):
        options.append("-host=aarch64-linux-android")
    return " ".join([kind, *draw(st.permutations(options))])


@settings(deadline=None)
@given(target_texts())
def test_text_and_json_come_back_equal(text: str) -> None:
    target = Target(text)
    for other in (
        Target(str(target)),
        Target.from_json(target.to_json()),
        Target(target),
        Target(target.to_json()),
        pickle.loads(pickle.dumps(target)),
    ):
        assert other == target
        assert hash(other) == hash(target)
        assert str(other) == str(target)
        assert (other.kind, other.device_name, other.host, other.options) == (
            target.kind,
            target.device_name,
            target.host,
            target.options,
        )


@settings(deadline=None)
@given(target_texts())
def test_order_of_options_does_not_matter(text: str) -> None:
    kind, *options = text.split()
    assert Target(" ".join([kind, *reversed(options)])) == Target(text)


@given(st.text(string.printable, max_size=40))
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    try:
        target = Target(text)
    except UsageError as error:
        assert error.exit_code == 2
    else:
        assert Target(str(target)) == target


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(PHONES),
    st.dictionaries(st.sampled_from(LIMITS), st.integers(1, 1 << 14)),
    st.sampled_from([None, "aarch64-linux-android"]),
)
def test_tvm_target_comes_back(device: str, limits: dict[str, int], host: str | None) -> None:
    target = Target({"kind": "opencl", "device": device, **limits}, host=host)
    back = Target(target.tvm_target)
    assert (back.device_name, back.host) == (device, host)
    # A limit that equals the device's may be dropped. The TVM target stays the same.
    assert back.tvm_target.export() == target.tvm_target.export()


def test_tvm_target_has_the_limits_of_the_device() -> None:
    exported = Target("opencl -device=adreno640").tvm_target.export()
    assert exported["kind"] == "opencl"
    assert exported["max_num_threads"] == exported["max_threads_per_block"] == 1024
    assert exported["max_shared_memory_per_block"] == 32768
    assert exported["thread_warp_size"] == 1  # barriers are never left out
    assert exported["host"]["kind"] == "llvm"


def test_cuda_compiles_for_the_architecture_of_the_device_unless_told_otherwise() -> None:
    target = Target("cuda -device=nvidia_h200")
    exported = target.tvm_target.export()
    assert (
        exported["kind"],
        exported["arch"],
        exported["max_num_threads"],
        exported["max_shared_memory_per_block"],
    ) == ("cuda", "sm_90a", 1024, 49152)
    assert not target.limits.has_fp16_arithmetic
    assert Target("cuda -device=nvidia_h200 -arch=sm_80").tvm_target.export()["arch"] == "sm_80"
    for text in ("cuda -device=nvidia_h200", "cuda -device=nvidia_h200 -arch=sm_80 -max_num_threads=256"):
        assert Target(Target(text).tvm_target) == Target(text)


def test_tf32_has_to_be_allowed_and_reaches_other_processes() -> None:
    target = Target("cuda -device=nvidia_h200")
    allowed = target.with_options(tf32="allow")
    assert str(allowed) == "cuda -device=nvidia_h200 -tf32=allow"
    assert (target.limits.allows_tf32, allowed.limits.allows_tf32) == (False, True)
    assert Target.from_json(allowed.to_json()) == Target(str(allowed)) == allowed.with_options(tf32="allow") == allowed
    assert not Target("cuda -arch=sm_75 -tf32=allow").limits.allows_tf32, "no tensor cores that could"
    with pytest.raises(UsageError, match="unknown target option 'tf32'; known: device, facts, half, host"):
        Target("opencl -device=adreno640").with_options(tf32="allow")


def test_given_limits_win_over_the_device() -> None:
    exported = Target("opencl -device=adreno640 -max_num_threads=128").tvm_target.export()
    assert exported["max_num_threads"] == exported["max_threads_per_block"] == 128


def test_host_triple_reaches_tvm() -> None:
    target = Target("opencl -device=adreno640", host="aarch64-linux-android")
    assert target.tvm_target.host.export()["mtriple"] == "aarch64-linux-android"
    assert target != Target("opencl -device=adreno640")


def test_plain_tvm_target_means_the_attached_device() -> None:
    import tvm.target

    assert Target(tvm.target.Target({"kind": "opencl"})) == Target("opencl")
    assert Target({"kind": "opencl"}) == Target() == Target("opencl")
    assert Target({"kind": "opencl", "device": "mali_g76", "host": {"kind": "llvm"}}) == Target(
        "opencl -device=mali_g76"
    )


@pytest.mark.parametrize("text", ["opencl", "opencl -device=host"])
def test_attached_device_is_asked_for_its_limits(text: str) -> None:
    target = Target(text)
    assert target.spec.max_work_group_size is not None
    assert "asked from the driver of" in target.spec.source_of("max_work_group_size")
    assert target.tvm_target.export()["max_num_threads"] == target.spec.max_work_group_size
    assert Target(target.tvm_target) == target


def test_host_is_named_host() -> None:
    assert Target("opencl -device=host").spec.name == "host"
    assert Target("opencl -device=host").device_name == "host"
    assert Target("opencl").device_name is None


KINDS_TEXT = "known: cuda, null, opencl, vulkan"
DEVICES_TEXT = f"known: {', '.join(known_devices())}"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("opengl", f"unknown target kind 'opengl'; {KINDS_TEXT}\nDid you mean 'opencl'?"),
        ("", f"unknown target kind ''; {KINDS_TEXT}\nA target starts with its kind: 'opencl -device=host'."),
        (
            "cuda -device=adreno640",
            (
                "device 'adreno640' is no CUDA device; with -device= cuda knows nvidia_h200\nLeave -device= out for the"
                " attached GPU."
            ),
        ),
        ("cuda -arch=90", "target option -arch=90: must be a CUDA architecture such as sm_80 or sm_90a"),
        (
            "cuda -half=storage",
            (
                "unknown target option 'half'; known: arch, device, facts, host, max_num_threads,"
                " max_shared_memory_per_block, tf32, thread_warp_size, variant"
            ),
        ),
        ("cuda -tf32=yes", "target option -tf32=yes: must be allow, or left out"),
        (
            "metal -device=host",
            f"unknown target kind 'metal'; {KINDS_TEXT}\nA target starts with its kind: 'opencl -device=host'.",
        ),
        ("opencl -device=adreno64", f"unknown device 'adreno64'; {DEVICES_TEXT}\nDid you mean 'adreno640'?"),
        ("opencl -device=Mali-G76x", f"unknown device 'Mali-G76x'; {DEVICES_TEXT}\nDid you mean 'mali_g76'?"),
        ("opencl -device=zzz", f"unknown device 'zzz'; {DEVICES_TEXT}"),
        (
            "opencl device",
            "target 'opencl device': cannot read 'device'\nOptions have the form -name=value, e.g. -device=host.",
        ),
        (
            "opencl -device=",
            "target 'opencl -device=': cannot read '-device='\nOptions have the form -name=value, e.g. -device=host.",
        ),
        (
            "opencl -device=host -device=adreno640",
            "target 'opencl -device=host -device=adreno640': -device is given twice ('host' and 'adreno640')",
        ),
        ("opencl -max_num_threads=0", "target option -max_num_threads=0: must be a whole number above zero"),
        ("opencl -max_num_threads=many", "target option -max_num_threads=many: must be a whole number above zero"),
        ("opencl 'x", 'target "opencl \'x": No closing quotation'),
        (
            {"device": "host"},
            "target dict has no 'kind'; got ['device']\nFor example {'kind': 'opencl', 'device': 'host'}.",
        ),
        ({"kind": "opencl", "host": {"kind": "c"}}, "the host target must be of kind 'llvm', got 'c'"),
        (
            {"kind": "opencl", "host": "phone"},
            "host 'phone' is not an LLVM triple\nFor example aarch64-linux-android; leave it out for this machine.",
        ),
        (
            {"kind": "opencl", "keys": ["texture", "opencl", "gpu"]},
            (
                "target keys ['texture'] choose schedules inside TVM, which Romou does not use\n"
                "Leave 'keys' out and name the device: {'kind': 'opencl', 'device': 'adreno640'}."
            ),
        ),
        (7, "a target is text, a dict or a tvm Target; got int"),
    ],
)
def test_error_text(bad: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Target(bad)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        Target("opencl -max_num_thread=64")
    known = ", ".join(sorted(("device", "facts", "half", "host", "images", *LIMITS, "variant", "waves", "without")))
    assert (
        str(caught.value) == f"unknown target option 'max_num_thread'; known: {known}\nDid you mean 'max_num_threads'?"
    )
    assert caught.value.nearest == "max_num_threads"


@pytest.mark.parametrize("text", ["{", "[1]", "nonsense"])
def test_broken_json_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="target"):
        Target.from_json(text)


def test_a_target_does_not_import_tvm() -> None:
    import subprocess
    import sys

    code = (
        "import sys, romou.devices.targets; romou.devices.targets.Target('opencl -device=adreno640').spec; print('tvm'"
        " in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )


def test_limits_that_are_not_known_are_those_that_tvm_takes() -> None:
    import tvm.target

    exported = tvm.target.Target({"kind": "opencl"}).export()
    assert backend("opencl").default_limits == {name: exported[name] for name in backend("opencl").default_limits}


@pytest.mark.parametrize(
    "text",
    [
        "opencl -host=foo-bar-baz",
        "opencl -host=..--",
        "opencl -max_num_threads=99999999999999999999",
        "opencl -max_num_threads=2147483648",
    ],
)
def test_values_that_no_compiler_takes_are_refused(text: str) -> None:
    name = text.partition("-")[2].partition("=")[0]
    with pytest.raises(UsageError, match=name):
        Target(text)
