"""Acting: the same decisions with and without staging, graphs and a GPU."""

import numpy as np
import pytest
import torch
from scipy import stats

from laser_rl.agent.parameters import FlatParameters
from laser_rl.agent.policy import Policy, Seen
from laser_rl.cuda import staged
from laser_rl.cuda.staged import MOST_GRAPHS, OFTEN, Staged
from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec, MultiDiscreteActions, ObservationSpec
from laser_rl.networks.build import family_of
from tests.networks.make import build_network

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU = torch.device("cpu")
PICTURE = ObservationSpec((1, 20, 20), "uint8", 1 / 255)
ACTIONS = [DiscreteActions(5), MultiDiscreteActions((2, 4)), BoxActions((-1.0, -2.0), (1.0, 2.0))]


def policy_of(action=ACTIONS[0], *, device="cpu", memory="none", deterministic=False, seed=1, **more):
    spec = EnvironmentSpec("pictures", PICTURE, action)
    torch.manual_seed(0)
    torso = "tiles" if memory == "none" else "mlp"
    options = {"torso": torso, "stack": 4, "hidden": (16,), "memory": memory, "memory_size": 8, **more}
    network = build_network(spec, **options).to(device)
    with torch.no_grad():
        network.policy_head.weight.mul_(300.0)  # opinions
    return Policy(network, family_of(action), seed=seed, deterministic=deterministic)


def seen(policy, rows, seed=0):
    random, family = np.random.default_rng(seed), policy.family
    shape = (rows, *family.action_shape)
    action = random.integers(2, size=shape) if family.joint_size else random.normal(size=shape).astype(np.float32)
    return Seen(
        random.integers(0, 256, (rows, 4, 20, 20)).astype(np.uint8),
        random.random(rows) < 0.3,
        action,
        random.normal(size=rows).astype(np.float32),
        random.normal(size=(rows, policy.network.state_size)).astype(np.float32),
    )


def assert_decisions(one, two, tolerance=0.0):
    for name, left, right in zip(one._fields, one, two, strict=True):
        if left is None:
            assert right is None
            continue
        assert left.dtype == right.dtype, name
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance, err_msg=name)


def stage(policy, **more):
    """The way of a GPU, on a CPU."""
    policy._staged = Staged(
        policy._decide, policy.device, generator=policy.generator, addresses=policy._addresses, **more
    )
    return policy


def test_acting_by_numpy_is_acting_by_torch_whatever_number_of_rows_came_before():
    own, twin = policy_of(torso="mlp"), policy_of(torso="mlp")
    assert own._layers
    twin._layers = []
    for rows in (1, 4, 2, 4):
        assert_decisions(own.act(seen(own, rows)), twin.act(seen(twin, rows)), 1e-4)


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("action", ACTIONS)
def test_staged_decisions_are_those_of_the_direct_way(action, memory):
    direct, through = policy_of(action, memory=memory), stage(policy_of(action, memory=memory))
    for call, rows in enumerate([3, 3, 7, 1, 7, 3]):  # more rows than before, and fewer
        what = seen(direct, rows, seed=call)
        assert_decisions(direct.act(what), through.act(what))


def test_what_comes_back_is_not_overwritten_by_the_next_call():
    policy = stage(policy_of())
    first = policy.act(seen(policy, 4, seed=1))
    kept = [part.copy() for part in first[:3]]
    policy.act(seen(policy, 4, seed=2))
    for part, copy in zip(first[:3], kept, strict=True):
        np.testing.assert_array_equal(part, copy)


class Recording:
    """Stands for a graph: does the work again."""

    def __init__(self):
        self.captured, self.replays = [], 0

    def __call__(self, work, device, *, who, generators, pool):
        recording, states = self, [generator.get_state() for generator in generators]
        work()  # as a warm-up would
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

        class Graph:
            def replay(self):
                recording.replays += 1
                work()

            def pool(self):
                return "pool"

        self.captured.append(pool)
        return Graph()


@pytest.fixture
def recording(monkeypatch):
    recording = Recording()
    monkeypatch.setattr(staged, "capture", recording)
    return recording


def capturing(policy):
    policy._staged._captures = True
    return policy


def test_what_comes_often_is_captured_and_nothing_changes(recording):
    direct, through = policy_of(), capturing(stage(policy_of()))
    for call in range(2 * OFTEN):
        for rows in (5, 2):
            what = seen(direct, rows, seed=call)
            assert_decisions(direct.act(what), through.act(what))
    assert recording.captured == [None, "pool"]
    assert recording.replays == 2 * OFTEN


def test_no_more_graphs_than_allowed(recording):
    policy = capturing(stage(policy_of(deterministic=True)))
    policy.act(seen(policy, MOST_GRAPHS + 3))
    for rows in range(1, MOST_GRAPHS + 3):
        for _ in range(OFTEN + 1):
            policy.act(seen(policy, rows))
    assert len(recording.captured) == MOST_GRAPHS


def test_graphs_are_void_when_parameters_or_buffers_have_moved(recording):
    policy = capturing(stage(policy_of(deterministic=True)))
    for _ in range(OFTEN + 2):
        policy.act(seen(policy, 2))
    assert len(recording.captured) == 1
    FlatParameters(policy.network)  # moves all parameters
    replays = recording.replays
    for _ in range(OFTEN):
        policy.act(seen(policy, 2))
    assert recording.replays == replays
    policy.act(seen(policy, 2))
    assert len(recording.captured) == 2
    policy.act(seen(policy, 9))  # more room: other memory
    for _ in range(OFTEN):
        policy.act(seen(policy, 2))
    assert len(recording.captured) == 2


def test_only_our_own_networks_are_captured():
    class Users(torch.nn.Module):
        features = 6

        def forward(self, pictures):
            return pictures.flatten(1)[:, :6]

    assert policy_of().capturable
    assert policy_of(memory="lstm").capturable
    assert not policy_of(torso=Users()).capturable


@needs_gpu
@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_gpu_decides_like_a_cpu(action, memory):
    here = policy_of(action, memory=memory, deterministic=True)
    there = policy_of(action, memory=memory, deterministic=True, device="cuda")
    for call in range(2 * OFTEN):
        what = seen(here, 6, seed=call)
        one, two = here.act(what), there.act(what)
        np.testing.assert_allclose(one.behaviour, two.behaviour, rtol=5e-2, atol=5e-2)  # TF32
        if one.action.dtype == np.int64:
            sure = np.sort(one.behaviour, -1)
            clear = (sure[:, -1] - sure[:, -2] > 0.2) if action == ACTIONS[0] else np.zeros(6, bool)
            np.testing.assert_array_equal(one.action[clear], two.action[clear])
    assert there._staged._graphs


@needs_gpu
@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_graph_decides_like_the_launches_it_was_made_of(action, memory, deterministic):
    eager, graphed = (policy_of(action, memory=memory, device="cuda", deterministic=deterministic) for _ in range(2))
    eager._staged._captures = False
    for call in range(3 * OFTEN):
        for rows in (4, 7):
            what = seen(eager, rows, seed=call)
            assert_decisions(eager.act(what), graphed.act(what), tolerance=1e-4)
    assert sorted(graphed._staged._graphs) == [4, 7]
    np.testing.assert_array_equal(eager.generator.get_state().numpy(), graphed.generator.get_state().numpy())


@needs_gpu
def test_a_graph_draws_from_the_policy_and_goes_on_from_a_saved_state():
    policy = policy_of(device="cuda")
    what = seen(policy, 1)
    what = what._replace(observation=np.repeat(what.observation, 512, axis=0))
    drawn = [policy.act(what) for _ in range(OFTEN + 40)]
    saved = policy.generator.get_state()
    later = [policy.act(what).action for _ in range(3)]
    assert not np.array_equal(later[0], later[1])
    policy.generator.set_state(saved)
    for action in later:
        np.testing.assert_array_equal(policy.act(what).action, action)
    counts = np.bincount(np.concatenate([one.action for one in drawn[OFTEN:]]), minlength=5)
    share = torch.from_numpy(drawn[-1].behaviour[0]).double().softmax(-1).numpy()
    kept = share * counts.sum() > 5
    expected = share[kept] / share[kept].sum() * counts[kept].sum()
    assert stats.chisquare(counts[kept], expected).pvalue > 1e-4


@needs_gpu
def test_a_graph_sees_parameters_that_change_in_place_and_those_that_move():
    policy, what = policy_of(device="cuda", deterministic=True), None
    flat = FlatParameters(policy.network)
    what = seen(policy, 4)
    for _ in range(OFTEN + 2):
        before = policy.act(what)
    assert 4 in policy._staged._graphs
    with torch.no_grad():
        flat.value.mul_(0.5)
    changed = policy.act(what)
    assert not np.allclose(before.behaviour, changed.behaviour)
    assert 4 in policy._staged._graphs
    FlatParameters(policy.network).value.zero_()
    assert not policy.act(what).behaviour.any()
