"""Export of models to phones, which run them without Romou, with the runtime of `scripts/build_phone_runtime.sh`."""

from romou.runtime.deploy.export import check_exportable, export_model

__all__ = ["check_exportable", "export_model"]
