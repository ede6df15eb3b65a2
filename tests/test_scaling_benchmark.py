"""The projection of the paper's protocol: its arithmetic, and that docs/scaling.md shows what the script says."""

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import CASES, Assumed, Card, Case, emulator_steps, learner_steps, sweep_hours
from laser_rl import recipes
from laser_rl.replay.mixer import Counts

ROOT = Path(__file__).parents[1]


def test_examples_in_docstrings_hold():
    found = doctest.testmod(scaling)
    assert found.attempted > 0
    assert found.failed == 0


def test_the_document_shows_what_the_script_says():
    page = (ROOT / "docs" / "scaling.md").read_text()
    for table in scaling.report(Card(), Assumed()).split("\n\n"):
        assert table in page


@pytest.mark.parametrize("width", [1, 4])
def test_measured_figures_are_those_in_the_results(width):
    path = ROOT / "benchmarks" / "results" / f"2026-11-15-gpu-members-x{width}.json"
    (run,) = json.loads(path.read_text())["runs"]
    assert Card().learner(width) == pytest.approx(run["training_frames_per_second_one_learner_alone"], abs=0.5)
    usable = run["one_member"]["environment_frames_per_second_the_learner_alone_could_use"]
    assert 4 * learner_steps(Case(width, 0.96), Card(), 1.0) == pytest.approx(usable, rel=1e-5)


def test_the_papers_case_is_the_recipes():
    sweep = recipes.atari_shared()
    assert len(sweep.settings) == scaling.MEMBERS
    assert sweep.base.run.steps * scaling.FRAMES_A_STEP == scaling.FRAMES
    assert (sweep.base.loss.batch_unrolls, sweep.base.loss.unroll_steps) == (scaling.BATCH, scaling.STEPS)
    assert (sweep.base.network.width, sweep.base.replay.fraction) == (CASES[0].width, CASES[0].fraction)
    online = Counts.of(sweep.base.loss.batch_unrolls, sweep.base.replay.fraction).online
    assert CASES[0].new_steps == online * sweep.base.loss.unroll_steps


def test_every_training_frame_of_a_sweep_takes_its_time():
    """Counted the long way: updates times frames a batch, over frames a second."""
    case, card, assumed = Case(4, 0.96), Card(), Assumed(efficiency=0.5, overhead=0.1)
    frames = scaling.MEMBERS * case.updates * 128 * 20
    assert sweep_hours(case, card, assumed) == pytest.approx(1.1 * frames / (0.5 * 83_319) / 3600)


def test_emulators_limit_a_card_with_too_few_cores():
    case, card = Case(1, 0.875), Card()
    assert learner_steps(case, card, 0.9) > emulator_steps(card, 16)
    few, many = (sweep_hours(case, card, Assumed(cores=cores)) for cores in (8, 16))
    assert few == pytest.approx(2 * many)
    assert sweep_hours(case, card, Assumed(cores=64)) == pytest.approx(sweep_hours(case, card, Assumed(cores=640)))


def test_more_cards_hold_at_least_what_is_used():
    lines = scaling.costs(Card(), Assumed(), cards=(1, 8, 57, 64), prices=(3,))[2:]
    for line in lines:
        _, count, _, used, held, price = (cell.strip().replace(",", "") for cell in line.strip("| ").split("|"))
        assert int(held) >= int(used)
        assert (held == used) == (57 % int(count) == 0)
        assert float(price) == pytest.approx(3 * int(used), abs=2)


def test_a_senseless_assumption_is_refused():
    command = [sys.executable, "-m", "benchmarks.scaling", "--efficiency", "90"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "expected an efficiency in (0, 1]" in ended.stderr
