"""A model whose state stays on the device from run to run, such as the caches of a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.errors import UsageError
from romou.base.inputs import checked_inputs
from romou.runtime.module.outputs import Outputs
from romou.runtime.module.tuned_model import TunedModel
from tvm_patches.runtime import write


class Stepper:
    """Runs of a model that hand state on, without a copy to the host.

    Parameters
    ----------
    model
        A model on a device of this machine.
    state
        Name of an input -> name of the output that it becomes in the next run. Both have one shape and dtype.
    before
        Another stepper with inputs of the same names, whose state this one shares. A run of either sees what the other
        has done.

    Raises
    ------
    UsageError
        The model runs behind a connection.
    """

    def __init__(self, model: TunedModel, state: Mapping[str, str], before: Stepper | None = None) -> None:
        if model.remote is not None:
            raise UsageError(f"the model runs at {model.remote.address}: state stays on devices of this machine only")
        self.model, self._state = model, dict(state)
        self._places = {name: i for i, name in enumerate(model.inputs)}
        outputs = {name: i for i, name in enumerate(model.outputs)}
        self._kept = {outputs[output]: self._places[name] for name, output in state.items()}
        # Names of the outputs that are no state, and their places
        self._others = {name: i for name, i in outputs.items() if i not in self._kept}
        if before is not None:
            # A machine that has run, for a check or for times, reads other tensors.
            model.forget_runs()
            model._machine().share({self._places[name]: before.tensor(name) for name in state})
        # The first run makes the tensors.
        self._step({name: np.zeros(*kind) for name, kind in model.inputs.items()}, [])
        self.reset()

    def tensor(self, name: str) -> Any:
        """Return the tensor on the device that holds an input."""
        return self.model._machine().input_tensor(self._places[name])

    def reset(self) -> None:
        """Set the state to zero."""
        for name in self._state:
            write(self.tensor(name), np.zeros(*self.model.inputs[name]))

    def run(self, inputs: Mapping[str, np.ndarray], *wanted: str) -> Outputs:
        """Run once on the inputs that are no state, and return the outputs that are none, or only those wanted.

        Raises
        ------
        UsageError
            An input is missing or unknown, or has another shape or dtype.
        DeviceError
            The device failed.
        """
        checked_inputs(inputs, {name: kind for name, kind in self.model.inputs.items() if name not in self._state})
        return self._step(inputs, wanted or list(self._others))

    def _step(self, inputs: Mapping[str, np.ndarray], wanted: Sequence[str]) -> Outputs:
        arrays = [inputs.get(name) for name in self.model.inputs]
        outputs = self.model._machine().step(arrays, self._kept, [self._others[name] for name in wanted])
        return Outputs(wanted, outputs)
