"""What a user calls, one file a function: from an ONNX model to a tuned module. The names are `romou`'s; see
`romou.__all__`.
"""
