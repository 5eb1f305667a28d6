"""Names of ONNX domains beside the standard's."""

# onnxruntime's
MICROSOFT = "com.microsoft"
