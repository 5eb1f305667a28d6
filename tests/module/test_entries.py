"""Only kernels that read what others hand to the model check their arguments."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax

from romou.compiler.compilation import Compilation, import_model
from romou.devices.targets import Target
from support.models.nodes import model_of

X = np.random.default_rng(0).random((3, 5, 8)).astype(np.float32)
WEIGHTS = {
    "shape": np.array([15, 8], np.int64),
    "w": np.random.default_rng(1).random((8, 16)).astype(np.float32),
    "v": np.random.default_rng(2).random((16, 7)).astype(np.float32),
}


@pytest.fixture(scope="module")
def executable() -> relax.VMExecutable:
    nodes = {"flat": ("Reshape", "x shape"), "a": ("MatMul", "flat w"), "b": ("Softmax", "a"), "y": ("MatMul", "b v")}
    imported = import_model(model_of(nodes, {"x": X}, WEIGHTS), None)
    compiled = Compilation.of(imported, Target("opencl -device=host")).with_default_kernels().program
    assert compiled is not None
    return compiled.executable


def checking(executable: relax.VMExecutable) -> set[str]:
    """Return the kernels with host code that may refuse an argument."""
    (host,) = (module for module in executable.mod.imports if module.kind == "llvm")
    functions = re.findall(
        r"^define [^\n]*@__tvm_ffi_(\w+)\((.*?)^}", host.inspect_source("ll"), re.MULTILINE | re.DOTALL
    )
    assert {"dense", "dense1", "softmax"} <= {name for name, _ in functions}
    return {name for name, text in functions if "__tvm_set_raised" in text}


def test_the_first_kernel_checks_and_the_others_trust(executable: relax.VMExecutable) -> None:
    # It reads a view of the input.
    assert checking(executable) == {"dense"}


def test_what_is_handed_in_is_checked(executable: relax.VMExecutable, opencl_device: tvm.runtime.Device) -> None:
    main = relax.VirtualMachine(executable, [opencl_device])["main"]
    tensor = tvm.runtime.tensor
    with pytest.raises(RuntimeError, match="mismatch"):
        main(tensor(X[:2], opencl_device))
    with pytest.raises(ValueError, match="float32"):
        main(tensor(X.astype(np.int32), opencl_device))
    with pytest.raises(ValueError, match=r"device_type.*\n.*\n.*opencl"):
        main(tensor(X))
    output = main(tensor(X, opencl_device))[-1].numpy()
    scores = np.exp(X.reshape(15, 8) @ WEIGHTS["w"])
    np.testing.assert_allclose(output, scores / scores.sum(axis=1, keepdims=True) @ WEIGHTS["v"], rtol=1e-5)
