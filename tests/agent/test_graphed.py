"""Updates that are recorded and launched are the updates that the host watches over."""

import itertools
import logging
import math

import pytest
import torch
from torch import nn

from laser_rl.agent import learner as learner_module
from laser_rl.agent import parameters
from laser_rl.agent.learner import Learner
from laser_rl.agent.parameters import GIVE_UP_AFTER, LOOK_EVERY
from laser_rl.config import LossConfig, OptimiserConfig
from laser_rl.cuda import graphs
from laser_rl.cuda.graphs import MOST_GRAPHS, WARM_UPS, Graphed
from laser_rl.networks import torso
from laser_rl.networks.agent_network import AgentNetwork
from laser_rl.networks.torso import MLP
from laser_rl.ops.distributions import Categorical, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.types import Batch
from tests.agent import test_auxiliary, test_recurrent
from tests.agent.recording import Looked, NoLooks, WrittenDown
from tests.agent.test_learner import FAMILY, B, T, make_network, random_batch

ADAM = OptimiserConfig(kind="adam", learning_rate=0.01, schedule="linear")
RMSPROP = OptimiserConfig(kind="rmsprop", learning_rate=0.01, schedule="linear", clip_gradient_norm=0.5)
MOMENTUM = RMSPROP.model_copy(update={"momentum": 0.9})
LOSS = LossConfig(target_acceptance=0.5, trust_bound=0.2)


@pytest.fixture(autouse=True)
def by_torch(monkeypatch):
    """Also the learner that watches: what NumPy computes differs in the last bits."""
    monkeypatch.setattr(learner_module, "fits", lambda *_: False)


def one_hot(index, count):
    """As on a GPU, where torch does not look at the indices."""
    return torch.zeros(*index.shape, count, dtype=torch.long).scatter_(-1, index.unsqueeze(-1), 1)


def learners(network=make_network, loss=LOSS, rates=ADAM, family=FAMILY, **settings):
    """One that watches, one that launches, and the second one's recorder."""
    watching, launching = (Learner(network(), family, loss, rates, seed=3, **settings) for _ in range(2))
    recorder = WrittenDown()
    launching.launch_with(recorder)
    return watching, launching, recorder


def poisoned(batch):
    return batch._replace(
        reward=torch.full_like(batch.reward, math.nan), is_transition=torch.ones_like(batch.is_transition)
    )


def run(pair, batches, begin=0, total=40):
    """The same batches for all; from memory that is overwritten every time, as a batch that is filled over and over."""
    memory = None
    for update, batch in enumerate(batches, start=begin):
        memory = Batch(*(field.clone() for field in batch)) if memory is None or update % 7 == 0 else memory
        for place, field in zip(memory, batch, strict=True):
            place.copy_(field)
        for learner in pair:
            learner.update(memory, progress=update / total)


def assert_same(one, other):
    """Bit for bit, all of the state, and the report."""
    kept, found = one.state_dict(), other.state_dict()
    assert kept.numbers == found.numbers
    for group, tensors in kept.tensors.items():
        assert tensors.keys() == found.tensors[group].keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(found.tensors[group][name], tensor, rtol=0, atol=0, equal_nan=True, msg=name)
    assert one.report() == other.report()


@pytest.mark.parametrize("rates", [ADAM, RMSPROP, MOMENTUM])
def test_a_recorded_learner_is_the_watching_one_bit_for_bit(rates):
    watching, launching, recorder = learners(rates=rates)
    batches = [random_batch(seed)._replace(version=torch.full((B,), seed // 2)) for seed in range(30)]
    batches[3], batches[15] = poisoned(batches[3]), poisoned(batches[15])
    run((watching, launching), batches[:17])
    assert_same(watching, launching)  # in the middle: a report empties the sums
    before = watching.flat.value.clone()
    run((watching, launching), batches[17:], begin=17)
    assert_same(watching, launching)
    assert launching.recovery.counts.skipped == 2
    assert not torch.equal(watching.flat.value, before)
    # The first update makes the sums, so the rehearsals begin anew after it.
    assert (recorder.rehearsals, recorder.records, recorder.replays) == (WARM_UPS + 1, 1, 30 - WARM_UPS - 1)


def lanes(net, seed):
    return test_recurrent.batch_of(net, seed, carried=seed % 4 > 0)


@pytest.mark.parametrize("memory", ["lstm", "gru", "preco"])
def test_a_memory_is_carried_from_replay_to_replay(memory, monkeypatch):
    monkeypatch.setattr(torso.F, "one_hot", one_hot)
    watching, launching, recorder = learners(lambda: test_recurrent.network(memory=memory))
    batches = [lanes(watching.network, seed) for seed in range(20)]
    batches[11].state[:] = torch.nan
    run((watching, launching), batches)
    assert_same(watching, launching)
    assert recorder.replays > 10


def test_popart_can_be_recorded():
    loss = LossConfig(popart=True, popart_step=1e-2)
    watching, launching, recorder = learners(test_auxiliary.vector_network, loss)
    try:
        run((watching, launching), [test_auxiliary.multitask_batch(seed) for seed in range(12)])
    except Looked as error:
        raise AssertionError from error
    assert_same(watching, launching)
    assert recorder.replays > 5


def test_pixel_control_can_be_recorded():
    loss = LossConfig(pixel_control_cost=0.1)
    watching, launching, recorder = learners(test_auxiliary.picture_network, loss)
    run((watching, launching), [test_auxiliary.picture_batch(seed) for seed in range(12)])
    assert_same(watching, launching)
    assert recorder.replays > 5


@pytest.mark.parametrize(
    "loss",
    [
        LossConfig(trust="behaviour", trust_bound=0.5, reward_transform="clip", life_loss_ends_discount=True),
        LossConfig(trust="off", reward_transform="dmlab", reduction="sum"),
    ],
)
def test_every_variant_of_the_loss_can_be_recorded(loss):
    family = MultiCategorical((2, 2))
    watching, launching, recorder = learners(lambda: make_network(family=family), loss, family=family)
    run((watching, launching), [random_batch(seed, family=family) for seed in range(12)])
    assert_same(watching, launching)
    assert recorder.replays > 5


def test_a_launched_update_never_looks(monkeypatch):
    monkeypatch.setattr(torso.F, "one_hot", one_hot)
    monkeypatch.setattr(parameters, "GOOD_EVERY", 10)
    watching, launching, recorder = learners(lambda: test_recurrent.network(memory="lstm"), rates=RMSPROP)
    batches = [lanes(watching.network, seed) for seed in range(25)]
    run((watching,), batches)
    with NoLooks():
        run((launching,), batches)
    assert_same(watching, launching)
    assert recorder.replays > 10


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_roll_back_is_decided_by_the_device(memory, monkeypatch, caplog):
    monkeypatch.setattr(torso.F, "one_hot", one_hot)
    monkeypatch.setattr(parameters, "GOOD_EVERY", 10)
    watching, launching, _ = learners(lambda: test_recurrent.network(memory=memory))
    batches = [lanes(watching.network, seed) for seed in range(60)]
    first = 15
    for place in range(first, first + GIVE_UP_AFTER):
        batches[place] = poisoned(batches[place])
    assert (first + GIVE_UP_AFTER) % LOOK_EVERY == 0
    run((watching, launching), batches[:first])
    with torch.no_grad():
        for learner in (watching, launching):
            learner.flat.value.add_(1.0)  # not what was kept at the tenth update
    with caplog.at_level(logging.WARNING, "laser_rl.agent"):
        run((watching, launching), batches[first : first + GIVE_UP_AFTER], begin=first)
        assert len(caplog.records) == 1  # of the one that watches
        assert launching.recovery.counts.rollbacks == 1
        assert len(caplog.records) == 2
    torch.testing.assert_close(launching.flat.value, launching.recovery.good["value"], rtol=0, atol=0)
    run((watching, launching), batches[first + GIVE_UP_AFTER :], begin=first + GIVE_UP_AFTER)
    assert_same(watching, launching)
    assert (watching.recovery.counts.skipped, watching.recovery.counts.rollbacks) == (GIVE_UP_AFTER, 1)


def test_a_roll_back_comes_at_most_four_updates_late():
    _, launching, _ = learners()
    bad = 0
    run((launching,), [random_batch(seed) for seed in range(7)])
    while not launching.recovery.counts.rollbacks:
        run((launching,), [poisoned(random_batch())])
        bad += 1
    assert bad == 23  # the thirtieth update
    assert launching.recovery.counts.skipped == bad
    assert launching.state_dict().numbers["failing"] == 0


def test_what_is_kept_to_go_back_to_has_learned(monkeypatch):
    monkeypatch.setattr(parameters, "GOOD_EVERY", 10)
    watching, launching, _ = learners()
    batches = [random_batch(seed) for seed in range(20)]
    batches[19] = poisoned(batches[19])  # nothing is kept at the twentieth
    run((watching, launching), batches[:10])
    kept = launching.flat.value.clone()
    run((watching, launching), batches[10:], begin=10)
    assert torch.equal(launching.recovery.good["value"], kept)
    assert_same(watching, launching)


@pytest.mark.parametrize("what", ["tune", "load", "adopt", "move"])
def test_what_is_replaced_is_not_read_where_it_lay(what):
    pair = watching, launching, recorder = learners(loss=LossConfig(trust_bound=0.5), rates=RMSPROP)
    batches = [random_batch(seed) for seed in range(30)]
    run(pair[:2], batches[:9])
    earlier, donor = watching.state_dict(), Learner(make_network(5), FAMILY, LOSS, RMSPROP)
    run((donor,), batches[:3])
    run(pair[:2], batches[9:15], begin=9)
    assert recorder.records == 1
    for learner in pair[:2]:
        if what == "tune":
            learner.tune({"entropy_cost": 0.3, "clip_rho": 2.0, "learning_rate": 0.003, "trust_bound": 1.0})
        elif what == "load":
            learner.load_state_dict(earlier.tensors, earlier.numbers)
        elif what == "adopt":
            learner.adopt(donor.state_dict().tensors)
        else:
            learner.flat.move(*(torch.zeros(2, learner.flat.value.numel())[1] for _ in range(2)))
    run(pair[:2], batches[15:], begin=15)
    assert_same(watching, launching)
    assert recorder.records == (1 if what == "adopt" else 2)  # which copies everything into place
    assert recorder.replays > 10


def test_counts_go_with_a_checkpoint_from_device_to_host_and_back():
    watching, launching, _ = learners()
    batches = [random_batch(seed) for seed in range(6)]
    batches[4:] = map(poisoned, batches[4:])
    run((launching,), batches)
    kept = launching.state_dict()
    assert (kept.numbers["skipped"], kept.numbers["failing"]) == (2, 2)
    watching.load_state_dict(kept.tensors, kept.numbers)
    run((watching, launching), [poisoned(random_batch())], begin=6)
    assert_same(watching, launching)
    names = launching.numbers.names
    launching.count(names, torch.zeros(len(names)), None, learned=False)
    assert (launching.recovery.counts.skipped, launching.state_dict().numbers["failing"]) == (
        4,
        4,
    )  # watched once, as in a stack
    run((launching,), [poisoned(random_batch())], begin=8)
    assert (launching.recovery.counts.skipped, launching.state_dict().numbers["failing"]) == (5, 5)


def narrow(batch, columns):
    one, other = 1, 0
    rows = {
        name for name, field in batch._asdict().items() if field.ndim > 1 and field.shape[:2] in {(T, B), (T + 1, B)}
    }
    return Batch(**{n: f.narrow(one if n in rows else other, 0, columns) for n, f in batch._asdict().items()})


def test_each_shape_of_batch_has_a_graph_up_to_a_limit():
    watching, launching, recorder = learners()
    sizes = range(B, 0, -1)
    assert len(sizes) == MOST_GRAPHS + 1
    for seed, columns in itertools.product(range(8), sizes):
        for learner in (watching, launching):
            learner.update(narrow(random_batch(seed), columns), progress=0.0)
    assert_same(watching, launching)
    assert recorder.records == MOST_GRAPHS


def test_another_number_of_lanes_begins_anew(monkeypatch):
    monkeypatch.setattr(torso.F, "one_hot", one_hot)
    watching, launching, recorder = learners(lambda: test_recurrent.network(memory="gru"))
    batches = [lanes(watching.network, seed) for seed in range(16)]
    for learner in (watching, launching):
        for seed, batch in enumerate(batches):
            learner.update(narrow(batch, 4) if seed in {8, 9} else batch, progress=0.0)
    assert_same(watching, launching)
    assert recorder.replays > 5


@pytest.mark.parametrize("family", [DiagonalGaussian((-1.0,), (1.0,)), Categorical(2000)])
def test_what_needs_random_numbers_is_launched_but_not_recorded(family):
    watching, launching, _ = learners(lambda: make_network(family=family), family=family)

    class Plain(WrittenDown):
        def rehearse(self, work):
            return work()  # the bounds of a density are copied from the host

    recorder = Plain()
    launching.launch_with(recorder)
    run((watching, launching), [random_batch(seed, family=family) for seed in range(8)])
    assert_same(watching, launching)
    assert recorder.records == 0


def test_graphs_can_be_left_out():
    watching, launching, recorder = learners()
    launching.launch_with(recorder, graphs=False)
    run((watching, launching), [random_batch(seed) for seed in range(8)])
    assert_same(watching, launching)
    assert recorder.records == 0


class Curious(nn.Module):
    """A user's torso that looks at what it computes."""

    def __init__(self):
        super().__init__()
        self.inner, self.features = MLP((4,), (8,)), 8

    def forward(self, observation):
        out = self.inner(observation)
        return out if out.sum().item() > -1e9 else -out


def test_a_network_that_cannot_be_recorded_learns_all_the_same_and_says_why(caplog):
    def curious():
        torch.manual_seed(1)
        return AgentNetwork(Curious(), parameter_size=FAMILY.parameter_size)

    watching, launching, _ = learners(curious)

    class Patient(WrittenDown):
        def rehearse(self, work):
            return work()

    recorder = Patient()
    launching.launch_with(recorder)
    with caplog.at_level(logging.WARNING, "laser_rl.agent"):
        run((watching, launching), [random_batch(seed) for seed in range(12)])
        launching.tune({"entropy_cost": 0.3})
        watching.tune({"entropy_cost": 0.3})
        run((watching, launching), [random_batch(seed) for seed in range(12)])
    assert_same(watching, launching)
    assert recorder.records == 1
    (record,) = caplog.records
    assert "Looked" in record.message
    assert "waits for the device" in record.message
    assert "run.graphs" in record.message


def test_a_parameter_without_a_gradient_stays():
    def half_frozen():
        network = make_network()
        network.torso.layers[1].weight.requires_grad_(False)
        network.register_parameter("unused", nn.Parameter(torch.ones(3)))
        return network

    watching, launching, _ = learners(half_frozen, rates=RMSPROP)
    run((watching, launching), [random_batch(seed) for seed in range(10)])
    assert_same(watching, launching)
    assert launching.network.unused.tolist() == [1.0] * 3


def test_batches_are_copied_in_one_launch_a_type(monkeypatch):
    launches = []
    copy = torch._foreach_copy_
    monkeypatch.setattr(
        graphs.torch, "_foreach_copy_", lambda to, *rest, **how: (launches.append(to), copy(to, *rest, **how))
    )
    work = Graphed(lambda batch: batch.reward.sum() + batch.version.sum(), WrittenDown(), torch.device("cpu"))
    for seed in range(WARM_UPS + 2):
        batch = random_batch(seed)
        launches.clear()
        assert work(batch) == batch.reward.sum()
    assert len(launches) == len({field.dtype for field in batch})
    assert sum(map(len, launches)) == len(batch)
