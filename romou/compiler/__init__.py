"""ONNX to Relax to TIR to kernels. `pipeline.py` lists the passes in order."""
