"""Import of ONNX models into Relax: check a model, fix its shapes, fold constants, choose precisions, and import it."""
