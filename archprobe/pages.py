"""HTML pages from templates that share one base: `base.html` has the look of every report, light and dark."""

from __future__ import annotations

from typing import Any

import jinja2


def render(template: str, *, package: str = "archprobe", **parts: Any) -> str:
    """Return a page of the template in the package's folder `templates`, or in ArchProbe's, which has the base.

    Parts are escaped, unless the template marks them as safe. jinja2.UndefinedError if the template needs another part.
    """
    packages = dict.fromkeys((package, "archprobe"))
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name) for name in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template(template).render(parts)
