"""Checks of the limits that the driver claims: the largest work-group is run, the widest image is made."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.answer import Answer, answered, declined
from archprobe.curve import Findings
from archprobe.errors import BuildError, DeviceError, KernelError
from archprobe.meter import Meter
from archprobe.probes.probe import probe

_SOURCE = "__kernel void number(__global int *out) { out[get_global_id(0)] = get_local_id(0); }"


@probe("Device", "Limits of the device", "asked of the driver; group and image sizes are tried")
def limits(meter: Meter) -> Findings:
    facts = meter.device.facts
    said = {
        "CacheSize": (facts.global_cache_bytes, "bytes"),
        "CachelineSize": (facts.global_cache_line_bytes, "bytes"),
        "MaxBufferSize": (facts.max_buffer_bytes, "bytes"),
        "MaxConstMemSize": (facts.constant_bytes, "bytes"),
        "MaxLocalMemSize": (facts.local_mem_bytes, "bytes"),
        "SmCount": (facts.compute_units, "count"),
        "ClockFrequency": (facts.clock_mhz, "MHz"),
    }
    answers = {
        key: answered(value, unit, 0.9, "the driver says so") if value else declined(unit, "the driver says 0")
        for key, (value, unit) in said.items()
    }
    if facts.page_bytes:
        answers["PageSize_QCOM"] = answered(facts.page_bytes, "bytes", 0.9, "the driver says so")
    answers["LogicThreadCount"] = _work_group(meter)
    answers |= _images(meter)
    return Findings(answers=answers)


def _work_group(meter: Meter) -> Answer:
    size = meter.device.facts.max_work_group_size
    out = meter.device.buffer(4 * size)
    try:
        meter.device.launch(meter.device.kernel(_SOURCE, "number"), size, size, out)
    except (BuildError, DeviceError, KernelError) as error:
        return declined("work-items", f"the driver says {size}, but did not run such a group: {error.message}")
    if not np.array_equal(meter.device.read(out, np.zeros(size, np.int32)), np.arange(size)):
        return declined("work-items", f"the driver says {size}, but a kernel in such a group wrote wrong numbers")
    return answered(size, "work-items", 0.99, "the driver says so, and a group of this size ran")


def _images(meter: Meter) -> dict[str, Answer]:
    facts = meter.device.facts
    if not facts.has_images:
        return {key: declined("texels", "the device has no images") for key in ("MaxImageWidth", "MaxImageHeight")}
    answers = {}
    for key, width, height in (
        ("MaxImageWidth", facts.max_image_width, 1),
        ("MaxImageHeight", 1, facts.max_image_height),
    ):
        size = max(width, height)
        try:
            meter.device.image(np.zeros((height, width, 4), np.float32))
            answers[key] = answered(size, "texels", 0.99, "the driver says so, and an image of this size was made")
        except DeviceError as error:
            answers[key] = declined("texels", f"the driver says {size}, but made no such image: {error.message}")
    return answers
