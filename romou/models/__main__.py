"""Lists the bundled networks, or writes one as an ONNX file.

python -m romou.models            lists the bundled networks
python -m romou.models NAME FILE  writes one, filled with seeded weights, as an ONNX file
"""

from __future__ import annotations

import sys

from romou import models
from romou.base.errors import EXIT_USAGE, RomouError


def main(arguments: list[str]) -> int:
    """Run the command line above, and return its exit code."""
    if not arguments:
        print("\n".join((*models.names(), models.DECODER)))
        return 0
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return EXIT_USAGE
    import onnx

    try:
        onnx.save(models.load(arguments[0]), arguments[1])
    except RomouError as error:
        print(f"romou: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
