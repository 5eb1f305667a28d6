"""Small ONNX models for tests."""
