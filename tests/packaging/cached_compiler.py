"""A C++ compiler with a cache, for builds of this checkout and of copies. A build reuses an object that another one
compiled from the same text with the same options.

--quick, before all other words: objects that are not cached yet are not optimized.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.suite.compiled import compiled, kept


def main(words: list[str]) -> int:
    is_quick = words[:1] == ["--quick"]
    words = words[is_quick:]
    if "-c" not in words:
        return subprocess.run(["g++", *words], check=False).returncode
    place = words.index("-o") + 1
    before, out, behind = words[:place], words[place], words[place + 1 :]
    # The folders of the source and of headers differ from build to build. The texts of our headers and the versions of
    # the wheels, which are words, say the same.
    source = words[words.index("-c") + 1]
    same = [
        Path(word).name if word == source else word
        for word in (*before, *behind)
        if not word.startswith(("-I", "-isystem"))
    ]
    root = Path.cwd() if Path("tvm_patches").is_dir() else Path.cwd().parent
    sources = sorted(path for name in ("tvm_patches", "third_party") for path in (root / name).rglob("*"))
    texts = [path.read_text() for path in sources if path.suffix in (".cc", ".h") and "build" not in path.parts]
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
