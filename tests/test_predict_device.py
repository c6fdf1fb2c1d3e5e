"""The floor model keeps to what is known: the calibration point, the order of rungs, the bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiling.cost import work
from profiling.cost.predict_device import DEVICES, main, predict
from variants.config import PRESETS

GPT2 = PRESETS["gpt2"]


def test_the_article_s_step_is_the_calibration_point() -> None:
    low, high = predict(DEVICES["A40"], GPT2).rungs_ms["cat"]
    assert low == high == pytest.approx(4.95, rel=0.01), "4.95 ms on an A40, limited by the host"


@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_rungs_come_in_order_and_none_beats_the_memory_floor(device: str, precision: str) -> None:
    found = predict(DEVICES[device], GPT2, precision)
    order = ["cat", "static", "cudagraph", "compile-cudagraph", "triton"]
    for bound in (0, 1):
        values = [found.rungs_ms[name][bound] for name in order]
        assert values == sorted(values, reverse=True)
    assert all(found.memory_floor_ms < low <= high for low, high in found.rungs_ms.values())


@pytest.mark.parametrize("context", [0, 100, 1000])
def test_the_memory_floor_is_the_count_of_bytes_at_the_bandwidth(context: int) -> None:
    found = predict(DEVICES["A40"], GPT2, "float32", context)
    exact_ms = work.step_bytes(GPT2, context, 4, 4) / 696e6
    assert exact_ms <= found.memory_floor_ms < 1.03 * exact_ms


def test_known_numbers_of_the_floor() -> None:
    assert predict(DEVICES["A40"], GPT2).memory_floor_ms == pytest.approx(0.722, rel=0.02)
    assert predict(DEVICES["H200"], GPT2, "bfloat16").memory_floor_ms == pytest.approx(0.058, rel=0.05)
    assert all(device.source for device in DEVICES.values())


def test_dependent_launches_hide_at_most_the_gaps() -> None:
    device = DEVICES["H200"]
    low, high = predict(device, GPT2).rungs_ms["triton"]
    without = predict(replace(device, dependent_launches=False), GPT2).rungs_ms["triton"]
    assert without[0] - low == pytest.approx(61 * device.node_gap_us / 1e3) and high == without[1]


def test_a_kernel_less_per_layer_is_twelve_nodes_less() -> None:
    device = DEVICES["A40"]
    five, four = (predict(device, GPT2, kernels_per_layer=n).rungs_ms["triton"] for n in (5, 4))
    saved_ms = [12 * (device.node_gap_us + ramp) / 1e3 for ramp in device.ramp_us]
    assert [a - b for a, b in zip(five, four, strict=True)] == pytest.approx(saved_ms)


def test_a_device_of_your_own_may_have_no_gap(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--bandwidth", "4300", "--node-gap-us", "0"])
    assert "triton              0.184 to  0.268" in capsys.readouterr().out
