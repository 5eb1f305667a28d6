"""A model as files that run without Romou: on a phone, with the runtime that `scripts/build_phone_runtime.sh` makes."""

from romou.runtime.deploy.export import export_model

__all__ = ["export_model"]
