#!/usr/bin/env bash
# From a bare machine to a tuned model: a virtual environment, Romou with Intel's OpenCL driver for CPUs, and SqueezeNet 1.0 tuned on the CPU's OpenCL.
# Prints the time of every layer before and after, and the check against onnxruntime. Root or sudo is needed only where g++ or Python's venv is missing.
#   scripts/demo.sh [MODEL]           MODEL: a bundled network (default squeezenet1_0; `python -m romou.models` lists them)
#   TRIALS=96 SECONDS_LIMIT=150       the tuning budget
#   ROMOU_OPENCL_DEVICE=NAME          another device of this machine
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/setup_env.sh"

model=${1:-squeezenet1_0}
work=${WORK_DIR:-$ROOT/.demo}

setup_system
setup_python "[cpu]"
mkdir -p "$work"
say "checking this machine"
"$VENV/bin/romou" doctor
say "tuning $model on the CPU's OpenCL"
"$VENV/bin/romou" tune "bundled:$model" --target "opencl -device=host" --trials "${TRIALS:-96}" --seconds "${SECONDS_LIMIT:-150}" \
  --work-dir "$work/records" --output "$work/$model.romou"
say "running the saved module"
"$VENV/bin/romou" run "$work/$model.romou"
