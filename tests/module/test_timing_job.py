"""Single kernels are timed in a child process: one that crashes is an error, and the next one is timed."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import tvm

import romou
from romou.base.errors import DeviceError, UsageError
from romou.compiler.compilation import Compilation, import_model
from romou.runtime.module import Argument
from romou.runtime.workers.child import ChildCrashError, ChildProcess
from romou.tools.regression.timing import operator_subject
from support.models.small_networks import short_net


def test_a_kernel_that_ends_its_process_is_an_error(
    opencl_device: tvm.runtime.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = romou.compile(short_net(), verify=False)
    compilation = Compilation.of(import_model(short_net(), None), model.target).lowered()
    function = next(each for each in compilation.scheduled_functions() if each.task is not None)
    make = operator_subject(model, function.name, Argument.of_parameters(function.func), seed=0)
    timer, other = make(), make()
    assert all(ms > 0 for ms in timer(2, 3) + other(1, 1))
    worker = model._timers._child._process
    assert worker is not None
    assert worker.pid != os.getpid()

    def call(_child: ChildProcess, *_: object) -> None:
        raise ChildCrashError("it was killed by SIGSEGV\nand more")

    with monkeypatch.context() as patch:
        patch.setattr(ChildProcess, "call", call)
        with pytest.raises(DeviceError, match="the kernel ended its process: it was killed by SIGSEGV"):
            timer(1, 1)
    # Each timer has its tensors again, in another process.
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(10)
    assert len(other(1, 2)) == len(timer(1, 2)) == 2
    with pytest.raises(UsageError, match="the model has no function 'none'"):
        model.operator_timer("none", (), (np.zeros(1),))
    model.release()
    assert model._timers._child._process is None
