"""The calculation for several GPUs: closed forms, and the page that shows it."""

from pathlib import Path

import pytest

from benchmarks.data_parallel import Assumed, main, step_ms, table

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "multi-gpu.md"


def test_the_guide_shows_what_the_script_says(capsys):
    main(["calculate"])
    shown = capsys.readouterr().out.strip()
    assert shown == table(Assumed())
    assert shown in GUIDE.read_text()


def test_without_communication_and_floor_devices_share_the_work():
    ideal = Assumed(fixed_ms=0.0, floor_ms=0.0, bus_gb_s=1e12, meetings=0)
    for devices in (1, 2, 8):
        assert step_ms(devices, 1, ideal) == pytest.approx(ideal.step_ms / devices)
        assert step_ms(devices, devices, ideal) == pytest.approx(ideal.step_ms)


def test_a_slow_link_makes_more_devices_slower():
    slow = Assumed(bus_gb_s=0.5)
    assert step_ms(8, 1, slow) > step_ms(1, 1, slow) > step_ms(1, 0.5, slow)
