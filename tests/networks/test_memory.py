"""Memories: against torch's own, row by row, across resets."""

import numpy as np
import pytest
import torch
from torch import nn

from laser_rl.envs.instructions import WORDS, with_instruction, word_numbers
from laser_rl.envs.records import BoxActions, DiscreteActions, EnvironmentSpec, MultiDiscreteActions, ObservationSpec
from laser_rl.networks.recurrent import GRU, LSTM, PreCo, build_memory, state_size
from laser_rl.networks.torso import InstructionLSTM, LastStep
from laser_rl.types import Inputs
from tests.networks.make import build_network

T, B, F, C, S = 9, 4, 5, 3, 7
KINDS = ("lstm", "gru", "preco")


def rows(seed=0, first=0.3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(T, B, F, generator=g), torch.randn(T, B, C, generator=g), torch.rand(T, B, generator=g) < first


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_what_the_rows_since_the_last_reset_make_of_it(kind):
    memory, (features, last, first) = build_memory(kind, F, C, S), rows()
    begin = torch.randn(B, memory.state_size)
    seen, states = memory(features, last, first, begin)
    assert states.shape == (T, B, state_size(kind, S))
    for b in range(B):
        for t in range(T):
            since = max([r for r in range(t + 1) if first[r, b]], default=None)
            start, state = (0, begin[b : b + 1]) if since is None else (since, torch.zeros(1, memory.state_size))
            part = slice(start, t + 1), slice(b, b + 1)
            alone = memory(features[part], last[part], torch.zeros(t + 1 - start, 1, dtype=torch.bool), state)
            torch.testing.assert_close(states[t, b], alone[1][-1, 0])
            torch.testing.assert_close(seen[t, b], alone[0][-1, 0])


@pytest.mark.parametrize(("kind", "theirs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)])
def test_without_resets_it_is_torchs_own(kind, theirs):
    memory, (features, last, _) = kind(F, C, S), rows()
    other = theirs(F + C, S)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(other, f"{name}_l0").data.copy_(getattr(memory.cell, name))
    seen, states = memory(features, last, torch.zeros(T, B, dtype=torch.bool), torch.zeros(B, memory.state_size))
    expected, end = other(torch.cat([features, last], -1))
    torch.testing.assert_close(seen, expected)
    ends = torch.cat([part[0] for part in end], -1) if isinstance(end, tuple) else end[0]
    torch.testing.assert_close(states[-1], ends)


def test_preco_predicts_from_the_last_step_and_corrects_by_what_came():
    memory, (features, last, _) = PreCo(F, C, S), rows()
    state = torch.randn(B, 2 * S)
    seen, states = memory(features[:1], last[:1], torch.zeros(1, B, dtype=torch.bool), state)
    h, c = memory.predictor(last[0], (state[:, :S], state[:, S:]))
    h, c = memory.corrector(features[0], (h, c))
    torch.testing.assert_close(seen[0], h)
    torch.testing.assert_close(states[0], torch.cat([h, c], -1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_state_ends_with_its_episode(kind):
    memory, (features, last, first) = build_memory(kind, F, C, S), rows(first=0.0)
    first[3] = True
    _, states = memory(features, last, first, torch.full((B, memory.state_size), torch.nan))
    assert states[:3].isnan().all(dim=1).any()
    assert states[3:].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_stop_at_a_reset(kind):
    memory, (features, last, first) = build_memory(kind, F, C, S), rows(first=0.0)
    first[4, 1] = True
    features.requires_grad_()
    seen, _ = memory(features, last, first, torch.zeros(B, memory.state_size))
    seen[-1].sum().backward()
    assert features.grad[0, 0].abs().sum() > 0
    assert features.grad[:4, 1].abs().sum() == 0
    assert features.grad[4, 1].abs().sum() > 0


def test_the_last_step_by_kind_of_action():
    first, reward = torch.tensor([[False, True]]), torch.tensor([[-7.0, 0.5]])
    one = LastStep(DiscreteActions(3))
    assert one(torch.tensor([[1, 0]]), reward, first).tolist() == [[[0, 1, 0, -1], [0, 0, 0, 0]]]
    several = LastStep(MultiDiscreteActions((2, 3)))
    assert several(torch.tensor([[[1, 2], [0, 0]]]), reward, first).tolist() == [[[0, 1, 0, 0, 1, -1], [0] * 6]]
    real = LastStep(BoxActions((-1.0,), (1.0,)))
    assert real(torch.tensor([[[0.25], [3.0]]]), reward, first).tolist() == [[[0.25, -1.0], [0.0, 0.0]]]


@pytest.mark.parametrize("action", [DiscreteActions(3), MultiDiscreteActions((2, 3)), BoxActions((-1.0,), (1.0,))])
def test_a_network_with_a_memory_reads_the_last_action_and_reward(action):
    torch.manual_seed(0)
    network = build_network(EnvironmentSpec("x", ObservationSpec((4,)), action), memory="lstm", memory_size=8)
    nn.init.orthogonal_(network.policy_head.weight)
    shape = {DiscreteActions: (), MultiDiscreteActions: (2,), BoxActions: (1,)}[type(action)]
    nothing = Inputs(torch.zeros(2, 3, 4), torch.zeros(2, 3).bool(), torch.zeros(2, 3, *shape), torch.zeros(2, 3))
    base = network(nothing, network.initial_state(3))[0].policy
    acted = nothing._replace(last_action=torch.ones(2, 3, *shape))
    rewarded = nothing._replace(last_reward=torch.ones(2, 3))
    for changed in (acted, rewarded):
        assert not torch.allclose(network(changed, network.initial_state(3))[0].policy, base)


@pytest.mark.parametrize("encoder", ["lstm", "embedding"])
def test_the_instruction_is_read_and_is_no_picture(encoder):
    spec = EnvironmentSpec("x", ObservationSpec((3, 17, 16), "uint8", 1 / 255, words=16), DiscreteActions(2))
    torch.manual_seed(0)
    parts = {"torso": "tiles", "channels": 4, "hidden": (8,), "memory": "lstm", "memory_size": 8}
    network = build_network(spec, instruction=encoder, **parts)
    nn.init.orthogonal_(network.policy_head.weight)
    seen = []
    network.torso.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))

    def policy(text):
        picture = with_instruction(np.full((3, 16, 16), 9, np.uint8), text)
        observation = torch.from_numpy(picture)[None, None]
        nothing = torch.zeros(1, 1)
        return network(Inputs(observation, nothing.bool(), nothing, nothing), network.initial_state(1))[0].policy

    red, blue, moved = policy("get the red ball"), policy("get the blue ball"), policy("red get the ball")
    assert not torch.allclose(red, blue)
    assert not torch.allclose(red, moved)
    torch.testing.assert_close(red, policy("get the red ball"))
    assert seen[0].shape == (1, 3, 16, 16)
    torch.testing.assert_close(seen[0], seen[1])


def test_instructions_are_read_word_by_word_as_torchs_own_lstm_reads_them():
    texts = ["get the red ball", "", "red", "one two three four five six seven eight nine ten eleven twelve", "RED"]
    pictures = torch.from_numpy(np.stack([with_instruction(np.zeros((3, 16, 16), np.uint8), text) for text in texts]))
    torch.manual_seed(0)
    encoder, twin = InstructionLSTM(WORDS), nn.LSTM(20, 64, batch_first=True)
    nn.init.normal_(encoder.cell.bias_ih)
    with torch.no_grad():
        for name, value in encoder.cell.named_parameters():
            getattr(twin, f"{name}_l0").copy_(value)
    encoded, nothing = encoder(pictures), torch.zeros(64)
    assert encoded.shape == (5, 64)
    for text, mine in zip(texts, encoded, strict=True):
        words = torch.tensor([number for number in word_numbers(text) if number])
        torch.testing.assert_close(mine, twin(encoder.embedding(words)[None])[0][0, -1] if text else nothing)
    torch.testing.assert_close(encoded[2], encoded[4])
    torch.testing.assert_close(encoder(pictures[1:2])[0], nothing)
    encoded.sum().backward()
    learned = encoder.embedding.weight.grad.any(1).nonzero().flatten().tolist()
    assert learned == sorted({number for text in texts for number in word_numbers(text) if number})


@pytest.mark.parametrize("kind", KINDS)
def test_a_span_lets_what_was_seen_once_last(kind):
    """How much of the first row is left after twenty empty ones, against a memory of the usual kind."""

    def left(span):
        torch.manual_seed(0)
        memory = build_memory(kind, F, C, 64, span)
        features = torch.zeros(21, 2, F)
        features[0, 0] = 1.0
        empty = torch.zeros(21, 2, C), torch.zeros(21, 2, dtype=torch.bool)
        states = memory(features, *empty, torch.zeros(2, memory.state_size))[1]
        return ((states[-1, 0] - states[-1, 1]).norm() / (states[0, 0] - states[0, 1]).norm()).item()

    assert left(200) > 10 * left(0)


@pytest.mark.parametrize("normalised", [True, False])
def test_what_is_alike_in_all_features_does_not_reach_a_memory_that_normalises_them(normalised):
    spec = EnvironmentSpec("x", ObservationSpec((4,)), DiscreteActions(3))
    torch.manual_seed(0)
    network = build_network(spec, memory="preco", memory_size=8, normalise_features=normalised)
    nn.init.orthogonal_(network.policy_head.weight)
    inputs = Inputs(torch.randn(5, 2, 4), torch.zeros(5, 2).bool(), torch.zeros(5, 2), torch.zeros(5, 2))
    before = network(inputs, network.initial_state(2))[0].policy
    network.torso.register_forward_hook(lambda module, given, features: 3.0 * features + 7.0)
    after = network(inputs, network.initial_state(2))[0].policy
    assert torch.allclose(before, after, atol=1e-3) == normalised
