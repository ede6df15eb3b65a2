"""The same on a card: against the eager updates, without a wait, and beside other threads."""

import logging
import threading

import pytest
import torch

from laser_rl.agent.learner import Learner
from laser_rl.agent.parameters import GIVE_UP_AFTER
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.types import Batch
from tests.agent import test_auxiliary, test_recurrent
from tests.agent.test_graphed import ADAM, LOSS, MOMENTUM, RMSPROP, Curious, lanes, poisoned
from tests.agent.test_learner import FAMILY, make_network, random_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CASES = {
    "feed-forward": (make_network, random_batch, LOSS),
    "lstm": (test_recurrent.network, lambda seed: lanes(test_recurrent.network(), seed), LOSS),
    "popart": (test_auxiliary.vector_network, test_auxiliary.multitask_batch, LossConfig(popart=True)),
    "pixel control": (
        test_auxiliary.picture_network,
        test_auxiliary.picture_batch,
        LossConfig(pixel_control_cost=0.1),
    ),
}


def on_card(network, loss=LOSS, rates=RMSPROP, **settings):
    return Learner(network().cuda(), FAMILY, loss, rates, seed=3, **settings)


def there(batch):
    return Batch(*(field.cuda() for field in batch))


def run(learner, batches, begin=0):
    for update, batch in enumerate(batches, start=begin):
        learner.update(batch, progress=update / 100)


def assert_close(one, other, rtol=1e-3, atol=1e-4):
    kept, found = one.state_dict(), other.state_dict()
    assert kept.numbers == found.numbers
    for group in ("network", "optimiser"):
        for name, tensor in kept.tensors[group].items():
            torch.testing.assert_close(
                found.tensors[group][name].cpu(),
                tensor.cpu(),
                rtol=rtol,
                atol=atol,
                msg=lambda text, name=name: f"{name}: {text}",
            )
    report = other.report()
    assert {name: report[name] for name in report} == pytest.approx(one.report(), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("rates", [ADAM, RMSPROP, MOMENTUM])
@pytest.mark.parametrize("case", CASES)
def test_a_graph_does_what_eager_updates_do(case, rates):
    network, batch_of, loss = CASES[case]
    batches = [batch_of(seed) for seed in range(30)]
    batches[12] = poisoned(batches[12])
    watching = Learner(network(), FAMILY, loss, rates, seed=3)
    eager, captured = on_card(network, loss, rates, graphs=False), on_card(network, loss, rates)
    for learner in (watching, eager, captured):
        run(learner, batches)
    assert len(captured._launcher._replays) == 1
    assert len(eager._launcher._replays) == 0
    assert_close(eager, captured)
    assert captured.recovery.counts.skipped == watching.recovery.counts.skipped == 1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nobody_waits():
    """Uploads, replays, tallies, copies to go back to: nothing of an update waits, once it is captured."""
    learner = on_card(make_network)
    batches = [there(random_batch(seed)) for seed in range(12)]
    pinned = Batch(*(field.pin_memory() for field in random_batch(3)))
    run(learner, batches)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(20):
            run(learner, [*batches, pinned], begin=12)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(learner._launcher._replays) == 1
    assert learner.report()["skipped_updates"] == 0


def test_rates_bounds_and_tuned_settings_reach_the_graph():
    batches = [there(random_batch(seed)) for seed in range(10)]
    rates = OptimiserConfig(kind="rmsprop", learning_rate=0.1, schedule="linear")
    learner = on_card(make_network, LossConfig(target_acceptance=0.99, trust_bound=0.1), rates)
    run(learner, batches)
    bound, before = learner.bound.item(), learner.flat.value.clone()
    assert bound > 0.1
    learner.update(batches[0], progress=1.0)  # a rate of 0
    assert torch.equal(learner.flat.value, before)
    assert learner.bound.item() > bound
    learner.update(batches[0], progress=0.0)
    assert not torch.equal(learner.flat.value, before)
    learner.tune({"entropy_cost": 7.0})
    assert len(learner._launcher._replays) == 0
    run(learner, batches)
    assert len(learner._launcher._replays) == 1


def test_a_roll_back_without_the_host():
    learner = on_card(test_recurrent.network)
    run(learner, [lanes(learner.network, seed) for seed in range(10)])
    bad = poisoned(lanes(learner.network, 1))
    run(learner, [bad] * GIVE_UP_AFTER)
    assert (learner.recovery.counts.skipped, learner.recovery.counts.rollbacks) == (GIVE_UP_AFTER, 1)
    torch.testing.assert_close(learner.flat.value, learner.recovery.good["value"], rtol=0, atol=0)
    assert learner.recurrent.state_dict()["lost"].all()


# A capture that failed leaves nodes of its stream behind until they are collected; torch says so once.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")
def test_a_network_that_looks_runs_eagerly_on_the_stream_that_was_current(caplog):
    def curious():
        torch.manual_seed(1)
        return AgentNetwork(Curious(), parameter_size=FAMILY.parameter_size)

    captured, eager = on_card(curious), on_card(curious, graphs=False)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), caplog.at_level(logging.WARNING, "laser_rl.agent"):
        for learner in (captured, eager):
            run(learner, [random_batch(seed) for seed in range(12)])
            assert torch.cuda.current_stream() == stream
        assert_close(eager, captured)
    assert len([record for record in caplog.records if "cannot be captured" in record.message]) == 1
    torch.cuda.synchronize()
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_other_threads_go_on_while_a_graph_is_captured():
    """They launch, allocate, pin and wait for their own streams."""
    stop, problems, rounds = threading.Event(), [], 0

    def work():
        nonlocal rounds
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stop.is_set():
                    block = torch.randn(64, 64).pin_memory().to("cuda", non_blocking=True)
                    (block @ block).sum().item()
                    rounds += 1
        except RuntimeError as error:
            problems.append(error)

    # Before the thread is there: it draws from the same random numbers as the networks' first parameters.
    learner, eager = on_card(make_network), on_card(make_network, graphs=False)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        for entropy_cost in (0.1, 0.2, 0.3, 0.4, 0.5):
            for one in (learner, eager):
                one.tune({"entropy_cost": entropy_cost})
                run(one, [random_batch(seed) for seed in range(8)])
            assert len(learner._launcher._replays) == 1
    finally:
        stop.set()
        thread.join(60)
    assert not problems
    assert rounds > 0
    assert_close(eager, learner)
