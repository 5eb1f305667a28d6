"""A C++ compiler for builds of copies of this checkout: an object that one of them made of the same text, with the same words, is there for the next."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from compiled import compiled


def main(words: list[str]) -> int:
    if "-c" not in words:
        return subprocess.run(["g++", *words], check=False).returncode
    source, out = Path(words[words.index("-c") + 1]), words[words.index("-o") + 1]
    words.remove(out)
    texts = [path.read_text() for path in (source, *sorted(source.parents[1].rglob("*.h")))]
    try:
        shutil.copyfile(compiled(".o", *words, *texts, by=lambda path: subprocess.run(["g++", *words, str(path)], check=True)), out)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
