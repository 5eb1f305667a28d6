"""The runtime for arm64 Linux under qemu, with an arm64 PoCL: it serves RPC to this machine, which compiles for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from operators import conv, error_of, random_arrays, reference, task_of
from phone_servers import Server, running

from romou.build import build_task
from romou.library import export_library
from romou.measure.run_job import device_tensor
from romou.rpc import Address, connect
from romou.target import Target


@pytest.fixture(scope="module")
def server(arm64: Path, arm64_runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--key", "phone", "--port", "0", "--work-dir", str(tmp_path_factory.mktemp("work"))]
    with running([str(arm64), str(arm64_runtime / "romou_rpc_server"), *options]) as process:
        yield process


def test_convolutions_with_images_are_cross_compiled_and_right(server: Server, tmp_path: Path) -> None:
    connection = connect(Address.parse(f"127.0.0.1:{server.port}/phone"))
    assert connection.host == "aarch64-linux-gnu"
    assert "aarch64" in connection.devices[0]["version"]
    target = Target("opencl -device=adreno640 -half=storage", host=connection.host)
    task, rng = task_of(conv(10, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1))).with_free_images(), np.random.default_rng(3)
    arrays = random_arrays(task, rng)
    expected = reference(task, arrays)
    device = connection.session.device("opencl", 0)
    drawn = task.space(target).sample(rng, 100)
    # All three tensors in images, in buffers, and a mixture.
    configs = [next(c for c in drawn if (c["data"], c["weight"], c["output"]) == places) for places in (("image",) * 3, ("buffer",) * 3, ("buffer", "image", "buffer"))]
    for number, config in enumerate(configs):
        library = tmp_path / f"conv{number}.so"
        export_library(build_task(task, config, target), library, host=target.host)
        connection.session.upload(str(library))
        scopes = task.image_scopes(config, target)
        tensors = [device_tensor(a, device, scopes.get(str(p.name), "global")) for p, a in zip(task.func.params, arrays, strict=True)]
        connection.session.load_module(library.name)["main"](*tensors)
        assert error_of(tensors[-1].numpy().astype(np.float64), expected) < 1e-5, config
    connection.close()
