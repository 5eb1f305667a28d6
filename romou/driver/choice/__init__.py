"""The model that a tuning run returns: kernels chosen by times of layers and of the whole model."""
