"""Each shipped bug is put into a copy of the package: the test that guards against it must then fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow  # a process for each bug
ROOT = Path(__file__).parents[2]
GUARDS = "tests/ops/test_shipped_bugs.py"


class Bug(NamedTuple):
    module: str
    right: str
    wrong: str
    guard: str


BUGS = [
    Bug(
        "distributions",
        "[logits.log_softmax(-1) for logits",
        "[logits for logits",
        "test_divergence_of_raw_logits",
    ),
    Bug(
        "distributions",
        "(log_p.exp() * (log_p - log_q)).sum(-1)",
        "(log_q.exp() * (log_q - log_p)).sum(-1)",
        "test_divergence_in_the_wrong_direction",
    ),
    Bug(
        "vtrace",
        "        nothing = td_error.new_zeros(())\n",
        "        nothing = td_error.new_zeros(())\n        learnable = learnable.cumprod(0).bool()\n",
        "test_mask_as_a_cumulative_product",
    ),
    Bug(
        "vtrace",
        "torch.where(learnable, rho * td_error, nothing), torch.where",
        "rho * td_error, torch.where",
        "test_trust_on_the_trace_but_not_on_the_error",
    ),
    Bug("vtrace", "clamp(max=math.log(clip))", "clamp(min=math.log(clip))", "test_clipping_with_max"),
    Bug(
        "actor_critic",
        "torch.where(learnable & online, -entropy",
        "torch.where(learnable, -entropy",
        "test_entropy_or_auxiliary_losses_on_rejected_or_replayed_steps",
    ),
    Bug(
        "actor_critic",
        "torch.where(learnable & online, -entropy",
        "torch.where(online.expand_as(learnable), -entropy",
        "test_entropy_or_auxiliary_losses_on_rejected_or_replayed_steps",
    ),
    Bug(
        "pixel_control",
        "error = torch.where(learnable[..., None, None], target - taken, taken.new_zeros(()))",
        "error = target - taken",
        "test_entropy_or_auxiliary_losses_on_rejected_or_replayed_steps",
    ),
    Bug(
        "vtrace",
        "td_error = reward + discount * next_value - value\n",
        "next_value = torch.cat([next_value[1:], next_value[-1:]])\n"
        "        td_error = reward + discount * next_value - value\n",
        "test_value_after_a_truncation_taken_from_the_next_episode",
    ),
    Bug(
        "actor_critic",
        "learnable = trusted & is_transition\n",
        "learnable = trusted\n",
        "test_the_fake_transition_of_an_automatic_reset_trained_on",
    ),
    Bug(
        "recurrence",
        "cell(row, torch.where(first_of_each, torch.zeros_like(state), state))",
        "cell(row, state)",
        "test_memory_not_reset_inside_an_unroll",
    ),
    Bug(
        "vtrace",
        "reward + discount * next_target - value, rho)",
        "gain, rho)",
        "test_advantage_of_algorithm_1_counts_rho_twice",
    ),
    Bug(
        "actor_critic",
        "return -weight * log_prob",
        "return weight * log_prob",
        "test_policy_gradient_sign_of_algorithm_1",
    ),
]


def environment(tree: Path) -> dict[str, str]:
    """The copy before everything else, and nothing of the test run that this one is part of."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    search = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}


def run_guard(tree: Path, guard: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{GUARDS}::{guard}"]
    return subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def tree(tmp_path):
    for name in ("laser_rl", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_copy_itself_passes(tree):
    result = subprocess.run(
        [sys.executable, "-c", "import laser_rl; print(laser_rl.__file__)"],
        cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout.startswith(str(tree))
    assert run_guard(tree, "test_mask_as_a_cumulative_product").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.module}-{number}" for number, bug in enumerate(BUGS)])
def test_the_guard_fails_when_the_bug_is_put_in(tree, bug):
    source = tree / "laser_rl" / "ops" / f"{bug.module}.py"
    text = source.read_text()
    assert text.count(bug.right) == 1
    source.write_text(text.replace(bug.right, bug.wrong))
    result = run_guard(tree, bug.guard)
    assert result.returncode == 1, result.stdout
    assert "1 failed" in result.stdout
