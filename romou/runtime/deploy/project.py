"""Write an Android project around an exported model: a library with a Kotlin class, and a sample app.

romou/src/main/java/dev/romou/Model.kt      romou.h in Kotlin, over the functions in Native.kt
romou/src/main/jniLibs/arm64-v8a            the runtime
romou/src/main/assets/model                 the exported model, which the app unpacks at its first start
app                                         the sample, which classifies a picture
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from romou.base.errors import UsageError
from romou.base.folders import check_replaceable, replacing
from romou.runtime.deploy.export import META
from romou.runtime.deploy.phone import BUILD, runtime_facts

TRIPLE, _RUNTIME_TARGET, _ABI = "aarch64-linux-android", "android-arm64", "arm64-v8a"
_TEMPLATE, _MARKER, _WHAT = Path(__file__).with_name("android"), "settings.gradle.kts", "an Android project"


def check_project(folder: Path, host: str, runtime: Path | None) -> None:
    """Raise the errors of `write_project` that are known before the model is exported."""
    if host != TRIPLE:
        raise UsageError(f"an Android project takes a model for {TRIPLE}, not {host}", hint="Leave --host out.")
    if runtime is None:
        raise UsageError("an Android project needs the phone's runtime", hint=f"Build it: {BUILD}; then --runtime.")
    built_for = runtime_facts(runtime)["target"]
    if built_for != _RUNTIME_TARGET:
        raise UsageError(f"{runtime} was built for {built_for}, not {_RUNTIME_TARGET}", hint=f"Build it: {BUILD}")
    check_replaceable(folder, marker=_MARKER, what=_WHAT)


def write_project(folder: Path, model: Path, runtime: Path) -> Path:
    """Write the project, with the exported model in `model` and the libraries in `runtime`. An earlier one is replaced.

    Raise UsageError if `folder` exists and is something else, or cannot be written.
    """
    with replacing(folder, marker=_MARKER, what=_WHAT) as fresh:
        shutil.copytree(_TEMPLATE, fresh, dirs_exist_ok=True)
        main = fresh / "romou/src/main"
        libraries = main / "jniLibs" / _ABI
        libraries.mkdir(parents=True)
        for library in sorted(runtime.glob("*.so")):
            shutil.copy(library, libraries)
        about = json.loads((model / META).read_text(encoding="utf-8"))
        for name in (META, *about["files"]):
            (main / "assets/model" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model / name, main / "assets/model" / name)
        for programs in model.glob("*/programs"):
            shutil.copytree(programs, main / "assets/model" / programs.relative_to(model))
    return folder
