"""Manifest of a saved model (romou.json): the size and SHA-256 of every file in its folder and a SHA-256 of its text.

The hashes reveal damage, not forgery: an attacker who can write the folder can also write the hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from romou.base.errors import ModelError
from romou.base.files import read_file, regular
from romou.base.foreign import parsed, refused
from romou.base.schema import FileName, made_of

META = "romou.json"
FORMAT = 3
AGAIN = "Save the model again."


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A file's size and SHA-256."""

    bytes: int
    sha256: str


def write_manifest(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the manifest of a folder: `about`, which is plain data, and the folder's present files."""
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _hash_of(path)} for path in sorted(folder.iterdir())}
    (folder / META).write_bytes(_document({"format": FORMAT, **about, "files": files}))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the `about` of `write_manifest` after a check of all files.

    Raise ModelError if `folder` is no saved model, has another format, or is damaged.
    """
    about = _described(folder)
    with refused(ModelError, f"{folder}: {META} cannot be used", hint=AGAIN):
        files = made_of(dict[FileName, _Entry], about["files"])
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise ModelError(f"{folder}: {name} is missing; save the model again")
        if (size := path.stat().st_size) != entry.bytes:
            raise ModelError(
                f"{folder}: {name} is damaged: it has {size} bytes, {entry.bytes} were saved; save the model again"
            )
        if _hash_of(path) != entry.sha256:
            raise ModelError(
                f"{folder}: {name} is damaged: its SHA-256 is not that of what was saved; save the model again"
            )
    return about


def _described(folder: Path) -> dict[str, Any]:
    if not (folder / META).exists():
        raise ModelError(f"{folder}: no saved model (it lacks {META}); `romou tune` or TunedModel.save writes one")
    with refused(ModelError, f"{folder}: not a saved model, or a damaged one: {META}", hint=AGAIN):
        content = read_file(folder / META)
        about = made_of(dict[str, Any], parsed(content, has_constants=True))
    if about.get("format") != FORMAT:
        hint = "Compile or tune the model again and save it; with the same records nothing is measured anew."
        raise ModelError(f"{folder}: saved in format {about.get('format')!r}, this Romou reads {FORMAT}", hint=hint)
    about.pop("sha256", None)
    if _document(about) != content:
        raise ModelError(f"{folder}: {META} is damaged: its text is not what was saved; save the model again")
    return about


def _document(about: Mapping[str, Any]) -> bytes:
    """Return the text of romou.json. Its last entry is the hash of the text before it."""
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    return json.dumps({**about, "sha256": digest}, indent=1).encode()


def _hash_of(path: Path) -> str:
    with open(path, "rb", opener=regular) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
