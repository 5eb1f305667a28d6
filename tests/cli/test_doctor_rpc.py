"""`romou doctor --rpc`: its report on a server on loopback, on a phone's driver, and on wrong kernels."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from romou.base.space import Config
from romou.cli import main
from romou.compiler.operators.families import families
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.driver.check import server as server_check
from romou.tuner.measure import LocalBuilder, Toolchain
from support.devices import faulty_kernels
from support.servers.rpc_servers import Server, plain_server, serving
from support.suite.exhaustive import exhaustive

# A phone's facts as a server reports them, with a driver that names its compiler.
PHONE = """
real = tvm.get_global_func("romou.opencl.devices")
def devices():
    # Here no driver is opened before a session has a process of its own.
    (facts, *_) = json.loads(str(real()))
    facts |= {"name": "QUALCOMM Adreno(TM) 830", "platform": "QUALCOMM Snapdragon(TM)", "type": "gpu", "extensions": "cl_khr_fp16  cl_qcom_perf_hint"}
    return json.dumps([facts | {"driver": "OpenCL 3.0 QUALCOMM build: 0808 Compiler E031.47.18.49"}])
versions = json.loads(str(tvm.get_global_func("romou.rpc.versions")())) | {"host": "aarch64-linux-android"}
answers = {"romou.opencl.library": "/vendor/lib64/libOpenCL.so", "romou.rpc.versions": json.dumps(versions)}
answers |= {"romou.vulkan.devices": "[]", "romou.vulkan.failure": "libvulkan.so: not found"}
for name, answer in answers.items(): tvm_ffi.register_global_func(name, lambda answer=answer: answer, override=True)
tvm_ffi.register_global_func("romou.opencl.devices", devices, override=True)
"""  # noqa: E501


class WrongTask(TunableTask):
    """An operator with a wrong default kernel."""

    def default_config(self, target: Target) -> Config:
        return super().default_config(target).replace(fault="wrong")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


def doctor(address: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code, and the findings by their names."""
    result = CliRunner().invoke(main, ["doctor", "--rpc", address, "--json"])
    found = json.loads(result.stdout)
    assert found["exit_code"] == result.exit_code
    return result.exit_code, {finding["name"]: finding for finding in found["findings"]}


def test_a_server_that_is_well(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_check, "typical_tasks", lambda target: [faulty_kernels.task()])
    code, findings = doctor(server.address)
    assert code == 0
    for kind, library in (("opencl", "libOpenCL.so"), ("vulkan", "libvulkan.so")):
        assert findings[kind]["is_ok"]
        assert library in findings[kind]["detail"]
        assert findings[f"{kind}:0 kernels"]["detail"] == "right for every operator family: depthwise"
        assert "the reference kernel takes" in findings[f"{kind}:0 clock"]["detail"]
        assert " MiB are free on the machine" in findings[f"{kind} memory"]["detail"]
    assert (
        '<uses-native-library android:name="libOpenCL.so.1" android:required="false"/>'
        in findings["opencl manifest"]["detail"]
    )
    assert "pocl_compiler_lock" in str(findings.keys())


def test_kernels_that_are_wrong(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = faulty_kernels.task()
    monkeypatch.setattr(
        server_check,
        "typical_tasks",
        lambda target: [WrongTask(wrong.key, wrong.name, wrong.family, wrong.func, wrong.calls, wrong.flops)],
    )
    monkeypatch.setattr(
        server_check,
        "LocalBuilder",
        functools.partial(LocalBuilder, toolchain=Toolchain(build="support.devices.faulty_kernels:build")),
    )
    code, findings = doctor(server.address)
    assert code == 3
    assert findings["opencl:0 kernels"]["is_ok"] is False
    assert findings["opencl:0 kernels"]["detail"].startswith("0 of 1 families are right; depthwise: wrong_result: ")


@exhaustive
def test_all_families_are_right(server: Server) -> None:
    code, findings = doctor(server.address)
    assert code == 0
    for kind in ("opencl", "vulkan"):
        assert findings[f"{kind}:0 kernels"]["detail"].endswith(
            ": " + ", ".join(sorted(family.name for family in families()))
        )


def test_a_phones_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has a phone's quirks and the manifest's line. Without the NDK its kernels cannot be compiled here, and
    the report says so.
    """
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with plain_server(PHONE) as address:
        code, findings = doctor(address)
    assert code == 3
    assert "compiler E031.47.18.49" in findings["opencl:0"]["detail"]
    assert findings["opencl:0 extensions"]["detail"] == "cl_khr_fp16 cl_qcom_perf_hint"
    assert findings["opencl manifest"]["detail"].startswith(
        'an app\'s manifest needs, inside <application>: <uses-native-library android:name="libOpenCL.so"'
    )
    assert "buffers of about 1 GB are corrupted silently" in findings["opencl:0 adreno_large_buffers"]["detail"]
    assert "ANDROID_NDK_HOME" in findings["opencl"]["detail"] + str(findings["opencl"]["hint"])
    assert (findings["vulkan"]["is_ok"], "libvulkan.so: not found" in findings["vulkan"]["detail"]) == (None, True)


def test_nobody_there() -> None:
    code, findings = doctor("127.0.0.1:9/phone")
    assert (code, list(findings)) == (3, ["server"])
    assert "romou serve" in findings["server"]["hint"]
