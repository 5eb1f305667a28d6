"""The version of this package. It is compiled into the runtimes, and both sides of an RPC connection compare it."""

__version__ = "0.2.0"
