"""The runtime for arm64 Linux under qemu, with an arm64 PoCL: it serves RPC to this machine, which compiles for it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import romou
from romou.base.linking import export_library
from romou.compiler.assembly.kernel import build_task
from romou.devices.targets import Target
from romou.driver.options import PhoneRecordOptions
from romou.driver.phone.recording import MEASURE, record_phone
from romou.runtime.rpc import Address, connect
from romou.tuner.records import RecordStore
from support.kernels.operators import conv, error_of, random_arrays, reference, task_of
from support.models.small_networks import NetworkBuilder
from support.servers.phone_servers import Server, running
from support.suite.exhaustive import exhaustive
from tvm_patches.runtime import device_tensor

# What every arm64 Linux with a C++ runtime has.
SYSTEM = ("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-aarch64.so.1")


@pytest.fixture(scope="module")
def server(arm64: Path, arm64_runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--key", "phone", "--port", "0", "--work-dir", str(tmp_path_factory.mktemp("work"))]
    # Under qemu, optimising a kernel takes a minute.
    with running(
        [str(arm64), str(arm64_runtime / "romou_rpc_server"), *options], ROMOU_OPENCL_BUILD_OPTIONS="-cl-opt-disable"
    ) as process:
        yield process


def test_drivers_are_opened_when_they_are_asked_for(arm64_runtime: Path) -> None:
    """A phone without one of them runs the other's kernels."""
    for kind in ("opencl", "vulkan"):
        library = arm64_runtime / f"libtvm_runtime_{kind}.so"
        told = subprocess.run(
            ["aarch64-linux-gnu-readelf", "-d", str(library)], capture_output=True, text=True, check=True
        ).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(\S+?)\]", told))
        assert {"libtvm_ffi.so", "libtvm_runtime.so"} <= needed <= {"libtvm_ffi.so", "libtvm_runtime.so", *SYSTEM}


def test_a_convolution_of_images_is_cross_compiled_and_right(server: Server, tmp_path: Path) -> None:
    connection = connect(Address.parse(f"127.0.0.1:{server.port}/phone"))
    assert connection.host == "aarch64-linux-gnu"
    assert "aarch64" in connection.devices[0]["version"]
    target = Target("opencl -device=adreno640 -half=storage", host=connection.host)
    task, rng = task_of(conv(10, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1))).with_free_images(), np.random.default_rng(3)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    device = connection.session.device("opencl", 0)
    config = next(
        c for c in task.space(target).sample(rng, 100) if (c["data"], c["weight"], c["output"]) == ("image",) * 3
    )
    library = tmp_path / "conv.so"
    export_library(build_task(task, config, target), library, host=target.host)
    connection.session.upload(str(library))
    scopes = task.image_scopes(config, target)
    tensors = [
        device_tensor(a, device, scopes.get(str(p.name), "global"))
        for p, a in zip(task.func.params, task.arguments(arrays, config), strict=True)
    ]
    connection.session.load_module(library.name)["main"](*tensors)
    assert error_of(tensors[-1].numpy().astype(np.float64), expected) < 1e-5
    connection.close()


@exhaustive
def test_a_convolution_is_tuned_on_it(server: Server, tmp_path: Path) -> None:
    # Under qemu the driver's compiler is far slower than a phone's.
    measure = romou.MeasureOptions(run_timeout_s=300.0)
    graph = NetworkBuilder({"x": (1, 8, 7, 7)})
    model = graph.model(graph.add("Relu", graph.conv("x", 8, 12, pads=[1, 1, 1, 1])))
    tuned = romou.tune(
        model,
        target="opencl -device=adreno640",
        rpc=f"127.0.0.1:{server.port}/phone",
        trials=2,
        measure=measure,
        work_dir=tmp_path,
    )
    tuned.release()
    assert tuned.target.host == "aarch64-linux-gnu"
    assert tuned.summary().outcomes == {"ok": 2}
    assert tuned.summary().relative_l2_error < 1e-5
    with RecordStore(tmp_path) as store:
        assert {record.config["weight"] for record in store} == {"image"}


@exhaustive
def test_it_is_recorded(server: Server, tmp_path: Path) -> None:
    # Under qemu, the reference kernel and the driver's compiler take seconds.
    limits = {"run_timeout_s": 300.0, "connect_timeout_s": 120.0, "unreachable_s": 400.0}
    measure = dataclasses.replace(MEASURE, repeat=1, hold_clock_ms=1.0, **limits)
    options = PhoneRecordOptions(
        rpc=f"127.0.0.1:{server.port}/phone", target="opencl -device=adreno640", archprobe=False
    )
    works = {"conv": conv(8, (7, 7), 12, (1, 1))}
    recording = record_phone(tmp_path / "phone.json", options, works=works, configs=3, measure=measure)
    assert [(t.record.outcome, t.chosen_by, len(t.clock_s)) for t in recording.trials] == [
        ("ok", origin, 2) for origin in ("default", "estimate", "estimate")
    ]
    assert Target(recording.header["target"]).host == recording.header["host"] == "aarch64-linux-gnu"
    assert {t.record.config["weight"] for t in recording.trials} == {"image"}


def test_a_phones_driver_is_found_in_the_vendors_places(arm64: Path, arm64_runtime: Path, tmp_path: Path) -> None:
    """The root folder has no ICD loader, and its OpenCL library is in the place that Mali phones use. Qemu looks up
    absolute paths there first.
    """
    real = arm64.parent / "arm64/usr/lib/aarch64-linux-gnu"
    libraries = tmp_path / "root/usr/lib/aarch64-linux-gnu"
    libraries.mkdir(parents=True)
    for path in [*real.glob("*.so*"), real / "pocl"]:
        if not path.name.startswith("libOpenCL"):
            (libraries / path.name).symlink_to(path.resolve())
    loader = arm64.parent / "arm64/usr/lib/ld-linux-aarch64.so.1"
    (tmp_path / "root/lib").mkdir()
    (tmp_path / "root/lib" / loader.name).symlink_to(loader.resolve())
    environment = {"LD_LIBRARY_PATH": str(libraries), "OCL_ICD_VENDORS": str(arm64.parent / "arm64/etc/OpenCL/vendors")}
    command = [str(arm64.parent / "qemu-aarch64"), "-cpu", "neoverse-n1", "-L", str(tmp_path / "root")]
    for name, value in environment.items():
        command += ["-E", f"{name}={value}"]
    command += [str(arm64_runtime / "romou_rpc_server"), "--devices"]

    def devices() -> dict[str, Any]:
        return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["opencl"])

    missing = devices()
    assert missing["devices"] == []
    for place in (
        "/vendor/lib64/libOpenCL.so",
        "/system/vendor/lib64/libOpenCL.so",
        "/vendor/lib64/egl/libGLES_mali.so",
        "libmali.so",
    ):
        assert f"  {place}: " in missing["failure"]
    driver = tmp_path / "root/vendor/lib64/egl/libGLES_mali.so"
    driver.parent.mkdir(parents=True)
    shutil.copyfile(real / "libOpenCL.so.1", driver)
    found = devices()
    assert found["library"] == "/vendor/lib64/egl/libGLES_mali.so"
    assert "aarch64" in found["devices"][0]["version"]
