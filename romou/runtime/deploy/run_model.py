"""Run an exported model on the phone behind an RPC server, and print the time of each step.

    python run_model.py 127.0.0.1:9090/KEY [NAME=INPUT.npy ...]

Of several variants the first is taken. `romou phone push` and `romou phone start` come before. 127.0.0.1:9090/@FILE
reads the key from a file, 127.0.0.1:9090 from ROMOU_RPC_KEY. The host needs apache-tvm and NumPy, in the versions of
the phone's runtime. Missing inputs are zeros. Outputs are written to output0.npy and so on, beside this file. Copies go
over the connection. To time them on the phone, use romou_bench.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, rpc

HERE = Path(__file__).resolve().parent
REPEATS = 5


def load_inputs(about: dict[str, Any], files: dict[str, str]) -> list[np.ndarray]:
    return [
        np.load(files[i["name"]]) if i["name"] in files else np.zeros(i["shape"], i["stored"]) for i in about["inputs"]
    ]


def connect(address: str) -> rpc.RPCSession:
    host, _, rest = address.partition(":")
    port, _, key = rest.partition("/")
    # From a file or the environment, because other users of this machine can read a command line.
    key = (
        Path(key[1:]).expanduser().read_text(encoding="utf-8").strip()
        if key.startswith("@")
        else key or os.environ.get("ROMOU_RPC_KEY", "")
    )
    return rpc.connect(host, int(port), key)


def main(address: str, *assignments: str) -> None:
    about = json.loads((HERE / "model.json").read_text(encoding="utf-8"))
    variant = about["variants"][0]
    arrays = load_inputs(about, dict(word.split("=", 1) for word in assignments))
    session = connect(address)
    device = session.device(variant["kind"], 0)
    prepare, keep, program_folder = (
        session.get_function(f"romou.{variant['kind']}.{name}") for name in ("prepare", "keep", "program_folder")
    )
    # The server's cache of compiled programs.
    folder = str(program_folder())

    def timed_ms(step: Callable[[], Any]) -> tuple[float, Any]:
        start = time.perf_counter()
        result = step()
        device.sync()
        return 1e3 * (time.perf_counter() - start), result

    def load() -> Any:
        for name in ("model.so", "weights.bin"):
            session.upload(str(HERE / variant["name"] / name))
        # The graph and its weights, which import the library with the kernels.
        executable = session.get_function("relax.ExecutableLoadFromFile")(
            session.get_function("tvm.rpc.server.workpath")("weights.bin")
        )
        executable.import_module(session.load_module("model.so"))
        return executable

    def copy_in() -> None:
        machine.set_input("main", *(tvm.runtime.tensor(array, device) for array in arrays))

    def copy_out() -> list[np.ndarray]:
        outputs = machine.get_outputs("main")
        return [tensor.numpy() for tensor in (outputs if isinstance(outputs, tuple) else (outputs,))]

    read_ms, library = timed_ms(load)
    programs_ms, report = timed_ms(lambda: json.loads(str(prepare(library, 0, folder, 1))))
    weights_ms, machine = timed_ms(lambda: relax.VirtualMachine(library, [device] * variant["scopes"]))
    copy_in()
    print(f"send the model                  {read_ms:10.3f} ms")
    print(
        f"programs                        {programs_ms:10.3f} ms  {report['cached']} loaded, {report['compiled']}"
        " compiled"
    )
    print(f"weights to the device           {weights_ms:10.3f} ms")
    print(f"first run                       {timed_ms(lambda: machine.invoke_stateful('main'))[0]:10.3f} ms")
    if report["compiled"]:
        print(f"keep the programs               {timed_ms(lambda: keep(library, 0, folder))[0]:10.3f} ms")
    steps = {
        "inputs to the device": copy_in,
        "run": lambda: machine.invoke_stateful("main"),
        "outputs from the device": copy_out,
    }
    for name, step in steps.items():
        print(f"{name:31} {np.mean([timed_ms(step)[0] for _ in range(REPEATS)]):10.3f} ms")
    for number, output in enumerate(copy_out()):
        np.save(HERE / f"output{number}.npy", output)
        print(f"wrote {HERE / f'output{number}.npy'}, {output.dtype} {output.shape}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
