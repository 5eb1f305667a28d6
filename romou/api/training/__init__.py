"""Training: the loss of a model and its gradients, as a model that is tuned, compiled and run as any other.

    step = romou.training.gradients("model.onnx", loss="cross_entropy")
    tuned = romou.tune(step, target="opencl", trials=200)
    outputs = tuned.run({"image": images, "labels": labels, **step.parameters})

The gradient graph is that of TVM Relax's Gradient pass; the gradients of convolutions become tunable kernels
(docs/training.md).
"""

from romou.api.training.gradients import TrainingStep, gradients

__all__ = ["TrainingStep", "gradients"]
