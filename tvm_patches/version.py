"""The version of this package: device runtimes are compiled with it, and both sides of an RPC connection compare it."""

__version__ = "0.1.0"
