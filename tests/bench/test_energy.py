"""Energy: counters that the machine keeps, in joules, and nothing where there are none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specframe.bench.energy import EnergyMeter


def domain(folder, path, name, microjoules, most=10_000_000):
    """Make a RAPL domain as Linux shows it, and return the file of its counter."""
    made = folder / path
    made.mkdir(parents=True)
    (made / "name").write_text(f"{name}\n")
    (made / "max_energy_range_uj").write_text(f"{most}\n")
    (made / "energy_uj").write_text(f"{microjoules}\n")
    return made / "energy_uj"


def test_packages_are_added_up_and_nothing_is_counted_twice(tmp_path):
    """Parts of a package, and the sum of the whole platform, are in it already; a full counter begins anew."""
    first = domain(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 0)
    part = domain(tmp_path, "intel-rapl:0:0", "core", 5)
    platform = domain(tmp_path, "intel-rapl:2", "psys", 5)
    meter = EnergyMeter(tmp_path, nvml=SimpleNamespace(nvmlInit=_fail, NVMLError=RuntimeError))
    assert meter.source == "rapl"
    start = meter.read()
    first.write_text("500000")
    second.write_text("250000")
    part.write_text("999999")
    platform.write_text("999999")
    assert meter.read() - start == pytest.approx(1.5 + 0.25)
    first.write_text("600000")
    assert meter.read() - start == pytest.approx(1.6 + 0.25)
    first.unlink()
    assert meter.read() is None


def test_a_machine_without_counters_says_so(tmp_path):
    """Prevents a zero from passing for a measurement."""
    meter = EnergyMeter(tmp_path, nvml=SimpleNamespace(nvmlInit=_fail, NVMLError=RuntimeError))
    assert meter.source == "not available"
    assert meter.read() is None


def test_boards_count_in_millijoules(tmp_path):
    """Prevents a factor of a thousand."""
    counted = {"a": 1000.0, "b": 5000.0}
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: "ab"[index],
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: counted[handle],
    )
    meter = EnergyMeter(tmp_path, nvml=nvml)
    assert meter.source == "nvml"
    assert meter.read() == 6.0
    nvml.nvmlDeviceGetTotalEnergyConsumption = _fail
    assert meter.read() is None
    assert EnergyMeter(tmp_path, nvml=nvml).source == "not available"  # boards that do not count


def _fail(*_):
    raise RuntimeError("not supported")
