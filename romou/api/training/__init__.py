"""Training: the loss of a model and its gradients, as a model that is tuned, compiled and run like any other.

    step = romou.training.gradients("model.onnx", loss="cross_entropy")
    tuned = romou.tune(step, target="opencl", trials=200)
    outputs = tuned.run({"image": images, "labels": labels, **step.parameters})

TVM Relax's Gradient pass makes the gradient graph. The gradients of convolutions become tunable kernels
(`romou docs training`).
"""

from romou.api.training.gradients import TrainingStep, gradients

__all__ = ["TrainingStep", "gradients"]
