"""Prints the installed packages of this Python with their sizes in MiB, the largest first, and the sum.

python scripts/install_sizes.py [PACKAGE]...       only what these packages need, with them
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions

_SHOWN = 20


def size_of(package: Distribution) -> int:
    """Return the bytes of the files that the package installed, compiled ones included."""
    paths = {file.locate() for file in package.files or ()}
    return sum(path.stat().st_size for path in paths if path.is_file())  # type: ignore[attr-defined]


def with_requirements(names: list[str]) -> list[Distribution]:
    """Return the packages and all that they need here, extras left out. ValueError if one is not installed."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if name in names:
                raise ValueError(f"{name} is not installed for {sys.executable}") from None
            continue  # for another system or Python
        needs = (need for need in found[name].requires or () if "extra ==" not in need)
        waiting += [match[0] for need in needs if (match := re.match(r"[\w.-]+", need))]
    return list(found.values())


def main(names: list[str]) -> None:
    """Print the table."""
    packages = with_requirements(names) if names else list(distributions())
    sizes = sorted(((size_of(package), f"{package.name} {package.version}") for package in packages), reverse=True)
    for size, name in sizes[:_SHOWN]:
        print(f"{size / 2**20:8.1f}  {name}")
    print(f"{sum(size for size, _ in sizes[_SHOWN:]) / 2**20:8.1f}  {max(0, len(sizes) - _SHOWN)} others")
    print(f"{sum(size for size, _ in sizes) / 2**20:8.1f}  all {len(sizes)}")


if __name__ == "__main__":
    main(sys.argv[1:])
