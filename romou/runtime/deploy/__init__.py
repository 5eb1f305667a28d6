"""Export of models to phones, which run them without Romou, with the runtime of `romou phone build`."""

from romou.runtime.deploy.export import ShapeEntry, Variant, check_exportable, export_models
from romou.runtime.deploy.project import check_project, write_project

__all__ = ["ShapeEntry", "Variant", "check_exportable", "check_project", "export_models", "write_project"]
