"""The projection of the paper's protocol: its arithmetic, and that docs/scaling.md and the kept tables show what the script says."""

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import (
    CASES,
    VERSIONS,
    Assumed,
    Card,
    Case,
    emulator_steps,
    learner_steps,
    new_steps,
    sweep_hours,
)
from laser_rl import recipes
from laser_rl.replay.mixer import Counts

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results"


def test_examples_in_docstrings_hold():
    found = doctest.testmod(scaling)
    assert found.attempted > 0
    assert found.failed == 0


def test_the_document_and_the_kept_tables_show_what_the_script_says():
    tables = scaling.report(Card(), Assumed())
    assert (KEPT / "2026-11-16-scaling-tables.txt").read_text().strip() == tables.strip()
    assert tables.split("\n\n")[0] in (ROOT / "docs" / "scaling.md").read_text()


def kept(name):
    """The one sweep of a kept file."""
    (run,) = json.loads((KEPT / f"{name}.json").read_text())["runs"]
    return run


def test_measured_figures_are_those_in_the_results():
    card = Card()
    wide, narrow = kept("2026-11-16-gpu-members-x4"), kept("2026-11-16-gpu-members-x1")
    together, alone = "training_frames_per_second_all_members", "training_frames_per_second_one_learner_alone"
    assert card.members(Case(4, 0.96)) == round(wide[together])
    assert card.members(Case(1, 0.96)) == round(narrow[together])
    assert card.learner(4) == round(wide[alone])
    assert card.learner(1) == round(narrow[alone])
    permits = (KEPT / "2026-11-16-gpu-permits.txt").read_text()
    assert f"K=3: {card.members(Case(4, 0.875)):,} training frames/s" in permits


def test_new_steps_are_what_the_benchmark_counted_for_the_learner_alone():
    run = kept("2026-11-16-gpu-members-x4")["one_member"]
    usable = run["environment_frames_per_second_the_learner_alone_could_use"]
    assert 4 * new_steps(Case(4, 0.96), Card().learner(4)) == pytest.approx(usable, rel=1e-5)


def test_the_versions_of_the_runtime_are_those_in_the_results():
    names = ("2026-11-15-gpu-members-x4", "2026-11-16-gpu-members-x4-before-permits", "2026-11-16-gpu-members-x4")
    measured = [round(kept(name)["training_frames_per_second_all_members"]) for name in names]
    assert list(VERSIONS.values()) == [*measured, Card().learner(4)]


def test_a_fraction_that_was_not_measured_has_the_speed_of_the_papers():
    assert Card().members(Case(1, 0.875)) == Card().members(Case(1, 0.96))
    with pytest.raises(KeyError):
        Card().members(Case(2, 0.96))


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
    assert sweep_hours(case, card, assumed) == pytest.approx(1.1 * frames / (0.5 * 84_986) / 3600)
    measured = sweep_hours(case, card, Assumed(overhead=0.1))
    assert measured == pytest.approx(1.1 * frames / 77_333 / 3600)


def test_emulators_limit_a_card_with_too_few_cores():
    case, card = Case(1, 0.875), Card()
    assert learner_steps(case, card) > emulator_steps(card, 16)
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
    assert "expected an efficiency in (0, 2]" in ended.stderr
