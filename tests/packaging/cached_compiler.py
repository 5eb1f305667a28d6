"""A C++ compiler for builds of this checkout and of copies: an object that one of them made of the same text, with the
same words, is there for the next.

--quick, before all other words: what is not there yet is not optimised.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from compiled import compiled, kept


def main(words: list[str]) -> int:
    is_quick = words[:1] == ["--quick"]
    words = words[is_quick:]
    if "-c" not in words:
        return subprocess.run(["g++", *words], check=False).returncode
    place = words.index("-o") + 1
    before, out, behind = words[:place], words[place], words[place + 1 :]
    # From build to build, the folder of the source differs, and those of headers: Python's, which nothing includes, and
    # the wheels', whose versions are words.
    source = words[words.index("-c") + 1]
    same = [
        Path(word).name if word == source else word
        for word in (*before, *behind)
        if not word.startswith(("-I/", "-isystem/"))
    ]
    texts = [path.read_text() for path in sorted(Path("tvm_patches").rglob("*")) if path.suffix in (".cc", ".h")]
    if is_quick and not kept(".o", *same, *texts).exists():
        same, behind = [*same, "-O0"], [*behind, "-O0"]
    try:
        made = compiled(
            ".o", *same, *texts, by=lambda path: subprocess.run(["g++", *before, str(path), *behind], check=True)
        )
        shutil.copyfile(made, out)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
