"""The benchmark of the train step: it runs without a GPU, its counts are right, and its baseline computes what it says."""

import doctest
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu_measure, gpu_runs, gpu_train
from benchmarks.gpu_baseline import Baseline, Unrolls, generous, vtrace
from laser_rl import recipes
from laser_rl.config import override
from laser_rl.networks.build import parameter_count
from laser_rl.ops import vtrace as ours
from laser_rl.replay.store import Replay
from laser_rl.training.build import build_learner
from laser_rl.training.member_training import Progress
from laser_rl.types import UnrollLayout, empty_unrolls

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
WAIT_S = 120


def run(*words, timeout=WAIT_S):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_train.py"), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["gpu_baseline", "gpu_measure", "gpu_profile", "gpu_runs"])
def test_examples_in_docstrings_hold(name):
    module = importlib.import_module(f"benchmarks.{name}")
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0


def test_the_baselines_return_is_vtrace():
    generator = torch.Generator().manual_seed(1)
    log_ratio, reward = (torch.randn(7, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    discount = 0.9 * (torch.rand(7, 5, generator=generator) > 0.2).double()
    value = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    target, advantage = vtrace(log_ratio, reward, discount, value)
    learnable = torch.ones(7, 5, dtype=torch.bool)
    expected = ours.vtrace(log_ratio, learnable, reward, discount, value[:-1], value[1:])
    torch.testing.assert_close(target, expected.target)
    torch.testing.assert_close(advantage, expected.rho * expected.advantage)


def layers(width):
    """Input side, input and output channels of every convolution of IMPALA-deep."""
    side, planes = 84, 4
    for channels in (16 * width, 32 * width, 32 * width):
        yield side, planes, channels
        side, planes = (side + 1) // 2, channels
        yield from [(side, channels, channels)] * 4


@pytest.mark.parametrize("width", [1, 4])
def test_operations_and_bytes_are_those_of_the_layers(width):
    work, actions = gpu_measure.work_of(width, 4), 4
    linear = [(32 * width * 11 * 11, 256), (256, actions), (256, 1)]
    products = sum(side * side * 9 * planes * channels for side, planes, channels in layers(width))
    products += sum(inputs * outputs for inputs, outputs in linear)
    assert work.operations == 3 * 2 * products
    # Forward: in + out. Backward: in again, its gradient, and the gradient of what came out twice, for a pool once.
    moved = sum(side * side * (3 * planes + 3 * channels) for side, planes, channels in layers(width))
    moved += sum(3 * inputs + 3 * outputs for inputs, outputs in linear)
    pools = [(84, 42, 16 * width), (42, 21, 32 * width), (21, 11, 32 * width)]
    moved += sum(channels * (3 * before**2 + 2 * after**2) for before, after, channels in pools)
    assert work.activation_numbers == moved
    learner = build_learner(override(recipes.atari(), {"network.width": width}), gpu_train.SPEC, None)
    assert work.parameters == parameter_count(learner.network)


def test_the_rates_of_a_step():
    work, card = gpu_measure.Work(3_000_000, 1000, 10), gpu_measure.Card(matrix_tflops=0.6, copy_gb_s=2.0)
    rates = gpu_train.rates_of(work, observations=100, ms=1.0, card=card, bf16=True)
    assert rates["frames_per_second"] == 100_000
    assert rates["tflops"] == pytest.approx(0.3)
    assert rates["share_of_matrix_rate"] == pytest.approx(0.5)
    assert rates["least_bytes"] == 100 * 1000 * 2 + 10 * 20
    assert rates["share_of_copy_rate"] == pytest.approx(200_200 / 1e6 / 2.0)


@pytest.mark.parametrize("variant", ["fp32", "bf16"])
def test_the_baseline_learns(variant):
    batch = Unrolls(
        torch.randint(0, 256, (3, 2, 4, 84, 84), dtype=torch.uint8),
        torch.zeros(2, 2, dtype=torch.int64),
        torch.ones(2, 2),
        torch.zeros(2, 2),
        torch.zeros(2, 2, 4),
    )
    learner = Baseline(1, 4, CPU, variant)
    losses = [learner.update(batch)["value"] for _ in range(30)]
    assert losses[-1] < 0.2 * losses[0]  # the value of every row is 1


def switches():
    return torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def test_what_is_switched_on_for_the_baseline_is_switched_off_again():
    before, seen = switches(), []

    def fail():
        with generous():
            seen.append(switches())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [(True, True, True)]
    assert switches() == before


def test_a_watch_ends_a_run_and_its_warm_up_does_not_count(monkeypatch):
    now = iter([100.0, 103.0, 104.0, 107.0, 110.5, 110.6])
    monkeypatch.setattr(gpu_runs.time, "monotonic", lambda: next(now))
    watch = gpu_runs.Watch(seconds=10.0)
    kinds = ["train", "evaluation", "train", "train", "train", "train"]  # the last one comes when the run has ended
    answers = [watch(Progress(n, n, kind, {})) for n, kind in enumerate(kinds)]
    assert answers == [None, None, None, None, False, False]
    assert [sample.update for sample in gpu_runs.steady(watch.samples, 10.0)] == [2, 3, 4]
    with pytest.raises(RuntimeError, match="1 rows of metrics came after the warm-up"):
        gpu_runs.steady(watch.samples, 30.0)


def test_only_steps_are_frames_that_a_learner_could_use():
    layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    store, unrolls = Replay(layout, 100), empty_unrolls(layout, 8)
    unrolls.is_transition[:] = [True, False]  # every second row leads from one episode to the next
    store.insert(unrolls)
    config = override(recipes.atari(), {"loss.batch_unrolls": 8, "loss.unroll_steps": 2, "replay.fraction": 0.5})
    mixer = SimpleNamespace(counts=SimpleNamespace(online=4))
    member = SimpleNamespace(config=config, layout=layout, replay=store, mixer=mixer)
    assert gpu_runs.real_share(member) == 0.5
    samples = [gpu_runs.Sample(0.0, 0, 0, {}), gpu_runs.Sample(1.0, 200, 50, {})]
    flow = gpu_runs._flow(member, samples, gpu_runs.Alone(10.0))  # 100 updates a second
    # 4 new unrolls of 2 rows an update, half of them steps of 4 frames.
    assert flow["environment_frames_per_second_the_learner_alone_could_use"] == 100 * 4 * 2 * 0.5 * 4
    assert (flow["environment_share_of_usable"], flow["training_share_of_learner_alone"]) == (0.5, 0.5)


def test_a_member_without_rows_is_named():
    rows = [{"member": 0, "time": 1.0, "update": 1, "step": 1}]
    with pytest.raises(RuntimeError, match="member 0 wrote 1 rows"):
        gpu_runs.member_rates(rows, 0, since=0.0)


@pytest.mark.slow
def test_a_smoke_runs_everything_but_the_sweep(tmp_path):
    file = tmp_path / "results.json"
    shown = run("--smoke", "--end-to-end", 1.5, "--profile", tmp_path / "kernels.txt", "--json", file)
    assert "training frames/s" in shown
    found = json.loads(file.read_text())
    assert [row["step"] for row in found["steps"]] == [
        "eager fp32 (tf32)",
        "eager bf16 channels-last autocast",
        "ours, no graphs",
    ]
    for row in found["steps"]:
        assert row["frames_per_second"] == pytest.approx(1e3 * 2 * 3 / row["ms"])
        assert row["allocated"] is None
    (end,) = found["runs"]
    # 2 unrolls of 3 observations a batch, one of them new: 2 steps of 4 frames for 6 observations.
    assert end["training_frames_per_second"] == pytest.approx(6 * end["updates_per_second"])
    assert 0.9 < end["real_share_of_rows"] <= 1
    assert end["environment_frames_per_second_the_learner_alone_could_use"] == pytest.approx(
        8 / 6 * end["training_frames_per_second_learner_alone"] * end["real_share_of_rows"]
    )
    assert end["training_frames_per_second_learner_alone_on_noise"] > 0
    assert 0 < end["learner_busy"] <= 1
    assert "convolution" in (tmp_path / "kernels-x1.txt").read_text()


@pytest.mark.slow
def test_members_of_a_sweep_are_counted_together(tmp_path):
    file = tmp_path / "results.json"
    run("--smoke", "--no-baselines", "--members", 2, "--seconds", 6, "--json", file)
    (found,) = json.loads(file.read_text())["runs"]
    each = found["updates_per_second_by_member"]
    assert len(each) == 2
    assert min(each) > 0
    assert found["training_frames_per_second_all_members"] == pytest.approx(6 * sum(each), rel=1e-2)
    assert found["share_of_one_learner_alone"] == pytest.approx(
        found["training_frames_per_second_all_members"] / found["training_frames_per_second_one_learner_alone"]
    )
