"""Mesa's compilers for Adreno and Mali, asked without a phone what they make of a kernel."""
