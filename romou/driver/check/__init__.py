"""Outputs compared with those of onnxruntime, and devices compared with a known kernel."""
