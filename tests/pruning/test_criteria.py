"""Each criterion keeps configs within its limit and removes configs beyond it. It removes nothing if the device's
number is not known.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romou.base.errors import UsageError
from romou.compiler.operators.costs import criteria
from romou.compiler.operators.costs.estimate import estimate_parts, estimate_seconds
from romou.devices.hardware import HardwareSpec, load_device
from romou.devices.targets import Target
from romou.tools.report.spaces import criteria_table
from romou.tuner.pruning import BOUNDED, CRITERIA, Choices, KernelUsage, Rules, Verdict, judge
from romou.tuner.pruning.tasks import pruned_space
from support.kernels.operators import conv, task_of

FINE = KernelUsage(
    registers=40,
    needed_registers=40,
    buffer_bytes=0,
    image_bytes=1024,
    reread_image_bytes=1024,
    unshared_buffer_bytes=0,
    unshared_image_bytes=1024,
    access_width=4,
    output_bytes=4096,
    iterations=16,
    multiply_adds=64,
    local_loads=0,
    work_group_size=64,
    work_groups=100,
    local_memory_bytes=0,
    is_staged=False,
    images={"data": True, "weight": True, "output": True},
    has_copies=False,
    padding=0.0,
)
ADRENO, SMALL, MALI = load_device("adreno640"), load_device("adreno660"), load_device("mali_g76")
CHOICES = Choices(images=frozenset({"data", "weight", "output"}))


def failed(spec: HardwareSpec, rules: Rules | None = None, choices: Choices = CHOICES, **changes: Any) -> set[str]:
    usage = dataclasses.replace(FINE, **changes)
    return {name for name, verdict in judge(usage, spec, rules=rules, choices=choices).items() if not verdict.keep}


def test_a_fine_kernel_passes_everything() -> None:
    assert failed(ADRENO) == set()
    assert failed(MALI) == set()


@pytest.mark.parametrize(
    ("spec", "criterion", "within", "beyond"),
    [
        (ADRENO, "l1_cache", {"image_bytes": 9999, "reread_image_bytes": 1024}, {"reread_image_bytes": 1025}),
        (MALI, "l1_cache", {"reread_buffer_bytes": 16384, "reread_image_bytes": 8192}, {"reread_buffer_bytes": 16385}),
        (ADRENO, "registers", {"needed_registers": 181}, {"needed_registers": 182}),
        # A group that waits at barriers holds two warps of 128: 170 x 192 registers are shared by 256 work-items.
        (
            SMALL,
            "registers",
            {"needed_registers": 192, "work_group_size": 128},
            {"needed_registers": 128, "work_group_size": 128, "local_memory_bytes": 64},
        ),
        (SMALL, "registers", {"needed_registers": 192, "local_memory_bytes": 64}, {"needed_registers": 193}),
        # 384 x 181 registers are shared by 1024 work-items.
        (
            ADRENO,
            "registers",
            {"needed_registers": 67, "work_group_size": 1024},
            {"needed_registers": 68, "work_group_size": 1024},
        ),
        # Mali's compiler moves no load ahead, and leaves a kernel 57 of 64.
        (
            MALI,
            "registers",
            {"registers_as_written": 57, "needed_registers": 90, "work_group_size": 384},
            {"registers_as_written": 58, "work_group_size": 8},
        ),
        # Transforms are separate, small groups.
        (MALI, "registers", {"transform_registers": 64}, {"transform_registers": 65}),
        (
            ADRENO,
            "registers",
            {"transform_registers": 181, "work_group_size": 1024, "needed_registers": 67},
            {"transform_registers": 182},
        ),
        (
            ADRENO,
            "buffers",
            {"images": {"data": True, "weight": True, "output": False}},
            {"images": {"data": False, "weight": True, "output": True}},
        ),
        (
            MALI,
            "local_memory",
            {"local_memory_bytes": 64, "work_group_size": 72},
            {"local_memory_bytes": 64, "work_group_size": 73},
        ),
        (ADRENO, "warp", {"work_group_size": 48}, {"work_group_size": 47}),
        (MALI, "warp", {"work_group_size": 6}, {"work_group_size": 5}),
        (MALI, "access_width", {"access_width": 4}, {"access_width": 2}),
        # 190 GB/s from images, 96 from buffers, 146 from local memory.
        (ADRENO, "staging", {"is_staged": True, "buffer_bytes": 64}, {"is_staged": True, "buffer_bytes": 0}),
        (
            ADRENO,
            "occupancy",
            {"needed_registers": 90, "work_group_size": 256},
            {"needed_registers": 150, "work_group_size": 256},
        ),
        (MALI, "cores", {"work_groups": 3}, {"work_groups": 2}),
        (MALI, "padding", {"padding": 0.75}, {"padding": 0.76}),
        (MALI, "code", {"multiply_adds": 8192}, {"multiply_adds": 8193}),
        # Four times an instruction cache of 8 KiB, at 8 bytes an instruction.
        (ADRENO, "code", {"multiply_adds": 4096}, {"multiply_adds": 4097}),
        (
            MALI,
            "code",
            {"multiply_adds": 32 * 8192, "on_tensor_cores": True},
            {"multiply_adds": 32 * 8193, "on_tensor_cores": True},
        ),
        (MALI, "broadcast", {"has_copies": False}, {"has_copies": True}),
    ],
)
def test_limits(spec: HardwareSpec, criterion: str, within: dict[str, Any], beyond: dict[str, Any]) -> None:
    assert criterion not in failed(spec, **within)
    assert criterion in failed(spec, **beyond)


def test_the_literal_rule_counts_shared_bytes_for_each_work_item() -> None:
    assert "l1_cache" not in failed(ADRENO, unshared_image_bytes=8192)
    assert "l1_cache" in failed(ADRENO, Rules(count_per_work_item=True), unshared_image_bytes=8192)


def test_what_is_staged_need_not_fit_into_the_cache_but_by_the_literal_rule() -> None:
    staged = {
        "is_staged": True,
        "image_bytes": 9999,
        "reread_image_bytes": 9999,
        "unshared_image_bytes": 9999,
        "buffer_bytes": 16,
    }
    assert "l1_cache" not in failed(ADRENO, **staged)
    assert "l1_cache" in failed(ADRENO, Rules(count_per_work_item=True), **staged)


def test_a_kernel_is_not_blamed_for_what_its_operator_cannot_do() -> None:
    narrow = Choices(images=frozenset(), access_width=1)
    in_buffers = {"images": dict.fromkeys(("data", "weight", "output"), False), "access_width": 1}
    assert failed(ADRENO, choices=narrow, **in_buffers) == set()
    assert failed(ADRENO, **in_buffers) >= {"buffers", "access_width"}


def test_a_launch_too_small_for_a_warp_on_each_core_may_have_small_groups() -> None:
    assert "warp" not in failed(MALI, work_group_size=4, work_groups=10)
    assert "warp" in failed(MALI, work_group_size=4, work_groups=11)


def test_far_slower_than_the_fastest_by_the_estimate() -> None:
    seconds = estimate_seconds(FINE, ADRENO)
    assert seconds is not None
    fastest = dataclasses.replace(CHOICES, fastest_s={0: float(seconds)})
    assert "estimate" not in failed(ADRENO, choices=fastest)
    assert "estimate" not in failed(ADRENO, choices=fastest, iterations=32)
    assert "estimate" in failed(ADRENO, choices=fastest, iterations=160)
    assert "estimate" not in failed(ADRENO, Rules(slowest=20), fastest, iterations=160)
    # It does not exclude configs that it ranks before the default config either.
    default = dataclasses.replace(fastest, default_s={moved: 20 * one for moved, one in fastest.fastest_s.items()})
    assert "estimate" not in failed(ADRENO, choices=default, iterations=160)
    # Another algorithm's configs are held to its own fastest one.
    both = dataclasses.replace(CHOICES, fastest_s={0: float(seconds) / 100, 4096: float(seconds)})
    assert "estimate" in failed(ADRENO, choices=both)
    assert "estimate" not in failed(ADRENO, choices=both, transform_bytes=4096)


@pytest.mark.parametrize(
    "changes",
    [
        {"iterations": 32},
        {"multiply_adds": 640},
        {"work_groups": 1000},
        {"unshared_image_bytes": 65536},
        {"image_bytes": 10**7},
        {"output_bytes": 10**9},
        {"transform_bytes": 10**7},
        {"local_loads": 4096},
        {"needed_registers": 182},
        {"unshared_image_bytes": 0, "unshared_buffer_bytes": 1024},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_more_of_anything_takes_longer(changes: dict[str, Any]) -> None:
    """This includes data that is read from buffers, which bypass the first-level cache of an Adreno."""
    more, fine = estimate_seconds(dataclasses.replace(FINE, **changes), ADRENO), estimate_seconds(FINE, ADRENO)
    assert more is not None
    assert more > fine


def test_a_long_iteration_is_slower_on_an_adreno_than_its_instructions() -> None:
    """Half as many iterations of twice the length have the same instructions and loads."""

    def seconds(spec: HardwareSpec, length: int) -> float:
        sizes = {
            name: getattr(FINE, name) * length for name in ("multiply_adds", "image_bytes", "unshared_image_bytes")
        }
        estimated = estimate_seconds(dataclasses.replace(FINE, iterations=FINE.iterations // length, **sizes), spec)
        assert estimated is not None
        return float(estimated)

    assert seconds(ADRENO, 4) <= seconds(ADRENO, 1)
    assert seconds(ADRENO, 16) > seconds(ADRENO, 8) > seconds(ADRENO, 4)
    assert seconds(MALI, 16) <= seconds(MALI, 4)


def test_a_load_of_fp16_is_an_instruction_as_one_of_fp32_and_moves_half_the_bytes() -> None:
    read = {"unshared_image_bytes": 4096, "unshared_buffer_bytes": 1024}
    fp32 = estimate_parts(dataclasses.replace(FINE, **read), ADRENO)
    fp16 = estimate_parts(
        dataclasses.replace(FINE, **{name: count // 2 for name, count in read.items()}, element_bytes=2), ADRENO
    )
    assert fp32 is not None
    assert fp16 is not None
    assert (fp16["issuing"], fp16["waiting"]) == (fp32["issuing"], fp32["waiting"])
    assert (fp16["images"], fp16["buffers"]) == (fp32["images"] / 2, fp32["buffers"] / 2)
    # Local memory holds numbers of the type that is summed up.
    staged = {"local_loads": 4096}, {"local_loads": 2048, "multiplies_fp16": True}
    with_fp32, with_fp16 = (estimate_parts(dataclasses.replace(FINE, **one, element_bytes=2), ADRENO) for one in staged)
    assert with_fp32 is not None
    assert with_fp16 is not None
    assert with_fp16["issuing"] == with_fp32["issuing"]


def test_nothing_is_estimated_of_a_cpu_or_of_a_device_that_is_not_known() -> None:
    assert estimate_seconds(FINE, load_device("host")) is None
    assert estimate_seconds(FINE, HardwareSpec(name="new", title="nothing known")) is None


def test_what_is_not_known_of_a_device_excludes_nothing() -> None:
    nothing = HardwareSpec(name="new", title="nothing known")
    assert set(judge(FINE, nothing)) == {"padding", "code"}


def test_a_cpu_excludes_nothing_that_only_a_gpu_means() -> None:
    everything = {f.name: getattr(ADRENO, f.name) for f in dataclasses.fields(ADRENO)} | {
        "warp_sizes": (1,),
        "has_scalar_vector_broadcast": None,
    }
    cpu = HardwareSpec(**everything)
    assert not set(judge(FINE, cpu)) & {"warp", "access_width", "local_memory", "staging", "occupancy"}
    assert set(judge(FINE, load_device("host"))) == {"padding", "code"}


def test_a_verdict_tells_its_numbers_and_where_they_come_from() -> None:
    verdict = judge(dataclasses.replace(FINE, reread_image_bytes=2048), ADRENO)["l1_cache"]
    assert (verdict.criterion, verdict.keep, verdict.used, verdict.limit, verdict.unit) == (
        "l1_cache",
        False,
        2048,
        1024,
        "bytes",
    )
    text = str(verdict)
    assert text.startswith(
        "l1_cache: 2048, beyond the limit of at most 1024 bytes (l1_texture_cache_bytes: Romou paper"
    )


def test_every_criterion_judges_arrays_as_it_judges_numbers() -> None:
    sizes = np.asarray([1, 7, 8, 63, 64, 72, 73, 512, 1024])
    many = dataclasses.replace(
        FINE,
        work_group_size=sizes,
        needed_registers=np.full(9, 100),
        local_memory_bytes=np.full(9, 64),
        is_staged=np.full(9, True),
    )
    for spec in (ADRENO, MALI):
        together = judge(many, spec, choices=CHOICES)
        for index, size in enumerate(sizes):
            one = judge(
                dataclasses.replace(
                    FINE, work_group_size=int(size), needed_registers=100, local_memory_bytes=64, is_staged=True
                ),
                spec,
                choices=CHOICES,
            )
            assert {n: bool(v.keep) for n, v in one.items()} == {
                n: bool(np.broadcast_to(v.keep, 9)[index]) for n, v in together.items()
            }


def test_rules_are_checked() -> None:
    with pytest.raises(UsageError, match="local_memory_alpha must be above zero, got 0"):
        Rules(local_memory_alpha=0)


def test_names() -> None:
    assert all(name == function.__name__ for name, function in CRITERIA.items())
    assert set(CRITERIA) >= BOUNDED


def test_criteria_give_way_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(CRITERIA)[:2] == ["padding", "cores"]
    assert list(CRITERIA)[-1] == "registers"
    monkeypatch.setattr(criteria, "CRITERIA", dict(CRITERIA))

    def early(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
        """Return no verdict."""
        return None

    with pytest.raises(UsageError, match="'early' gives way at 10, as 'padding' does; give it another number"):
        criteria.criterion(gives_way=10)(early)
    criteria.criterion(gives_way=15)(early)
    assert list(criteria.CRITERIA)[:3] == ["padding", "early", "cores"]


def test_a_criterion_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new function under `@criterion` takes part in everything without another line: verdicts, reports, relaxing, the
    table, the second check of registers.
    """
    monkeypatch.setattr(criteria, "CRITERIA", dict(CRITERIA))
    monkeypatch.setattr(criteria, "BOUNDED", set(BOUNDED))

    @criteria.criterion(gives_way=1000)
    @criteria.bounded
    def tiles(usage: KernelUsage, spec: HardwareSpec, rules: Rules, choices: Choices) -> Verdict | None:
        """Reject work groups of more than 32 work-items."""
        return Verdict(criterion="tiles", used=usage.work_group_size, limit=32, unit="work-items", source="toy")

    assert "tiles" in failed(ADRENO)
    assert "tiles" in criteria.BOUNDED
    task, target = task_of(conv(8, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1))), Target("opencl -device=adreno640")
    space = pruned_space(task, target)
    (count,) = (count for count in space.report.criteria if count.criterion == "tiles")
    assert count.alone > 0
    assert count.source == "toy"
    # The highest number is relaxed last.
    assert list(judge(FINE, ADRENO))[-1] == "tiles"
    assert (
        all(
            config["wg_o"] * config["wg_h"] * config["wg_w"] * config["split_k"] <= 32
            for config in space.sample(np.random.default_rng(0), 20)
        )
        or count.slack != 1
    )
    assert "tiles" in "".join(str(column._cells) for column in criteria_table([space.report]).columns)


def test_a_difference_inside_the_noise_excludes_nothing() -> None:
    """The rates 14.50 and 14.58 GB/s are equal. So are 14 and 20 GB/s if they were measured with
    overlapping intervals.
    """
    measured = dataclasses.replace(ADRENO, l1_buffer_cache_bytes=16384, l1_texture_bandwidth_gbps=None)
    staged = {"is_staged": True, "buffer_bytes": 64}
    for local, cache, ranges in (
        (14.50, 14.58, {}),
        (14.0, 20.0, {"local_mem_bandwidth_gbps": (12.0, 18.0), "l1_buffer_bandwidth_gbps": (17.0, 23.0)}),
    ):
        spec = dataclasses.replace(
            measured, local_mem_bandwidth_gbps=local, l1_buffer_bandwidth_gbps=cache, ranges=ranges
        )
        assert "staging" not in failed(spec, **staged)
    clear = dataclasses.replace(measured, local_mem_bandwidth_gbps=14.0, l1_buffer_bandwidth_gbps=20.0)
    assert "staging" in failed(clear, **staged)


NOISE = np.random.default_rng(11).uniform(-0.049, 0.049, (20, 3))


@pytest.mark.parametrize("noise", NOISE.tolist())
def test_noisy_twins_are_judged_alike(noise: list[float]) -> None:
    """Devices of equal rates, each measured with less than 5% noise. No comparison of two measured numbers decides."""
    local, images, buffers = (50.0 * (1 + error) for error in noise)
    rates = {
        "local_mem_bandwidth_gbps": local,
        "l1_texture_bandwidth_gbps": images,
        "l1_buffer_bandwidth_gbps": buffers,
    }
    twin = dataclasses.replace(MALI, **rates, alus_per_core=24, registers_per_lane=64, is_mobile=None)
    assert "staging" not in failed(twin, is_staged=True, buffer_bytes=64)
    assert not twin.prefers_images
    # 24 ALUs, perhaps only 20: 20 work-items in flight need not leave any idle.
    measured = dataclasses.replace(twin, register_file="pooled", register_lanes_per_core=20)
    busy = {"needed_registers": 64, "work_group_size": 20}
    assert "occupancy" in failed(measured, **busy)
    assert "occupancy" not in failed(dataclasses.replace(measured, ranges={"alus_per_core": (20.0, 28.0)}), **busy)


def test_a_scalar_spelling_is_chosen_by_measurement_only() -> None:
    """A device of unknown gain keeps copies in the space, also if its facts are filled from a device that gains."""
    unknown = dataclasses.replace(ADRENO, name="new", has_scalar_vector_broadcast=None)
    assert "broadcast" in failed(ADRENO, has_copies=True)
    for spec in (unknown, unknown.guessed_from(ADRENO), load_device("nvidia_h200"), load_device("adreno740")):
        assert "broadcast" not in failed(spec, has_copies=True)
        assert spec.has_scalar_vector_broadcast is None
    for name in ("adreno630", "adreno640", "mali_g76"):
        assert "figure 17" in load_device(name).source_of("has_scalar_vector_broadcast")


def test_the_width_of_an_access_is_the_device_s() -> None:
    narrow = {"access_width": 2}
    assert "access_width" in failed(MALI, **narrow)
    assert "access_width" not in failed(dataclasses.replace(MALI, best_access_lanes=2), **narrow)
    assert "access_width" in failed(dataclasses.replace(MALI, best_access_lanes=2), Rules(access_width=4), **narrow)


def test_a_cpu_s_report_excludes_nothing_that_only_gpus_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ArchProbe's report of a CPU has no warps and no register file, and local memory as fast as
    the cache behind it.
    """
    answers = {"value": 14.58, "unit": "GB/s", "low": 14.5, "high": 14.6}
    driver = {"name": "A CPU", "driver": "1", "is_cpu": True}
    report = {
        "ArchProbe": {"Version": "1", "Date": "2026", "IsComplete": True, "Driver": driver},
        "Device": {"Done": True, "CacheSize": 1 << 25, "SmCount": 2},
        "BufferCacheHierarchyPChase": {"Done": True, "CacheVectorCountLv1": 32768},
        "BufferBandwidth": {"Done": True, "MaxBandwidth": 14.58, "Details": {"Answers": {"MaxBandwidth": answers}}},
        "LocalMemBandwidth": {"Done": True, "MaxBandwidth": 14.50},
    }
    (tmp_path / "a_cpu.json").write_text(json.dumps(report))
    monkeypatch.setenv("ROMOU_DEVICES", str(tmp_path))
    spec = load_device("a_cpu")
    assert spec.is_cpu
    assert (spec.l1_buffer_cache_bytes, spec.l2_cache_bytes) == (32768, 1 << 25)
    assert not set(judge(FINE, spec)) & {"warp", "access_width", "local_memory", "staging", "occupancy", "registers"}
