"""Bad input gets one clear error at the public functions: what was expected, what came, what to do."""

import math

import pytest
import torch

from laser_rl.ops import actor_critic, checks, pixel_control, popart
from laser_rl.ops import recurrence as memory
from laser_rl.ops import trust_region as trust
from laser_rl.ops.checks import InputError
from laser_rl.ops.distributions import Categorical, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from laser_rl.ops.vtrace import vtrace

pytestmark = pytest.mark.usefixtures("as_in_production")

ones = torch.ones(3, 2)
mask = ones.bool()
action = torch.zeros(3, 2, dtype=torch.long)
task = torch.tensor([0, 1])
logits = torch.zeros(3, 2, 4)
four, pair = Categorical(4), MultiCategorical((2, 2))
gaussian = DiagonalGaussian((-1.0,), (1.0,))
statistics = popart.initial(2)
q = torch.zeros(4, 2, 5, 1, 1)
cumulant = torch.zeros(3, 2, 1, 1)

RETURNS = {
    "log_ratio": 0 * ones,
    "learnable": mask,
    "reward": ones,
    "discount": ones,
    "value": ones,
    "next_value": ones,
}
LOSSES = {
    "family": Categorical(4), "policy": logits, "value": torch.ones(4, 2), "behaviour": logits, "action": action, "reward": ones,
    "discount": ones, "is_transition": mask, "online": mask[0], "trusted": mask,
}  # fmt: skip
GOOD = {
    vtrace: RETURNS,
    trust.kl_to_implied: {"family": Categorical(4), "policy": logits, "behaviour": logits},
    trust.within: {"relevance": ones, "bound": 0.1},
    trust.adapt_bound: {"bound": torch.tensor(0.1), "accepted": torch.tensor(0.5), "target": 0.5},
    actor_critic.policy_gradient_loss: {"log_prob": ones, "rho": ones, "advantage": ones, "learnable": mask},
    actor_critic.value_loss: {"value": ones, "target": ones, "learnable": mask},
    actor_critic.entropy_loss: {"entropy": ones, "learnable": mask, "online": mask[0]},
    actor_critic.reduce: {"loss": ones, "learnable": mask, "how": "sum"},
    actor_critic.actor_critic_losses: LOSSES,
    popart.sigma: {"statistics": statistics},
    popart.sums: {"target": ones, "task": task, "learnable": mask, "tasks": 2},
    popart.normalise: {"statistics": statistics, "value": ones, "task": task},
    pixel_control.q_targets: {"q": q, "cumulant": cumulant, "discount": ones, "learnable": mask},
    pixel_control.q_loss: {"q": q, "action": action, "cumulant": cumulant, "discount": ones, "learnable": mask},
    memory.unroll: {"cell": lambda x, s: s, "inputs": ones, "is_first": mask, "state": torch.ones(2)},
    Categorical: {"actions": 2},
    four.log_prob: {"parameters": logits, "action": action},
    four.evaluate: {"parameters": logits, "action": action},
    pair.evaluate: {"parameters": logits, "action": torch.zeros(3, 2, 2, dtype=torch.long)},
    four.entropy: {"parameters": logits},
    four.kl: {"parameters": logits, "other": logits},
    four.sample: {"parameters": logits},
    MultiCategorical: {"actions": (2, 2)},
    pair.log_prob: {"parameters": logits, "action": torch.zeros(3, 2, 2, dtype=torch.long)},
    pair.entropy: {"parameters": logits},
    DiagonalGaussian: {"low": (-1.0,), "high": (1.0,)},
    gaussian.log_prob: {"parameters": torch.zeros(3, 2), "action": torch.zeros(3, 1)},
    gaussian.entropy: {"parameters": torch.zeros(3, 2)},
    gaussian.to_environment: {"action": torch.zeros(3, 1)},
}  # fmt: skip


@pytest.mark.parametrize("function", GOOD, ids=lambda function: getattr(function, "__qualname__", str(function)))
def test_good_input_passes(function):
    function(**GOOD[function])  # an exception fails it


def poisoned(tensor, number=math.nan):
    tensor = tensor.clone()
    tensor[(1,) * tensor.ndim] = number
    return tensor


def not_finite(name, tensor, number="nan"):
    place = (1,) * tensor.ndim
    return (
        f"{name} has 1 entries that are not finite, the first at {place} ({number}); "
        "find what produced them, they would spread through every target before them"
    )


def wrong_type(name, tensor):
    return f"{name} is {tensor.dtype}, expected torch.float32 or torch.float64; call {name}.float() first"


def not_mask(name):
    return f"{name} is torch.float32, expected torch.bool; compare or call {name}.bool()"


def wrong_shape(name, got, expected, like):
    return f"{name} has shape {got}, expected {expected} like {like}; inputs are time-major, [T, B]"


half = ones.half()
wide = torch.ones(3, 5)
NAN = "parameters of {} are not all finite; to forbid an action give it a logit of -1e4, not minus infinity"
FAMILY_METHODS = [f for f in GOOD if getattr(f, "__self__", None) in (four, pair)]

CASES = [
    # the returns
    *[(vtrace, {n: wide}, wrong_shape(n, (3, 5), (3, 2), "learnable")) for n in ("log_ratio", "next_value")],
    *[(vtrace, {n: half}, wrong_type(n, half)) for n in ("reward", "value")],
    *[(vtrace, {n: poisoned(ones)}, not_finite(n, ones)) for n in RETURNS if n != "learnable"],
    (vtrace, {"value": poisoned(ones, math.inf), "learnable": ~mask}, not_finite("value", ones, "inf")),
    (vtrace, {"next_value": poisoned(ones, -math.inf), "learnable": ~mask}, not_finite("next_value", ones, "-inf")),
    (vtrace, {"learnable": ones}, not_mask("learnable")),
    (vtrace, {"learnable": mask[0]}, "the mask has shape (2,), expected rows [T, B]"),
    (vtrace, {"learnable": mask[:0]}, "the mask has shape (0, 2), expected rows [T, B]"),
    # the recursions
    (memory.unroll, {"is_first": ones}, not_mask("is_first")),
    (memory.unroll, {"inputs": wide}, "inputs (3, 5) and state (2,) do not fit is_first (3, 2); expected [T, B, ...] and [B, ...]"),
    (memory.unroll, {"state": torch.ones(3)}, "inputs (3, 2) and state (3,) do not fit is_first (3, 2); expected [T, B, ...] and [B, ...]"),
    # the losses
    *[(actor_critic.policy_gradient_loss, {n: wide}, wrong_shape(n, (3, 5), (3, 2), "learnable")) for n in ("log_prob", "rho", "advantage")],
    *[(actor_critic.policy_gradient_loss, {n: poisoned(ones)}, not_finite(n, ones)) for n in ("log_prob", "rho", "advantage")],
    *[(actor_critic.value_loss, {n: poisoned(ones)}, not_finite(n, ones)) for n in ("value", "target")],
    (actor_critic.entropy_loss, {"entropy": half}, wrong_type("entropy", half)),
    (actor_critic.entropy_loss, {"online": mask[:, 0]}, wrong_shape("online", (3,), (2,), "row")),
    (actor_critic.entropy_loss, {"online": ones[0]}, not_mask("online")),
    (actor_critic.reduce, {"loss": wide}, wrong_shape("loss", (3, 5), (3, 2), "learnable")),
    (actor_critic.actor_critic_losses, {"value": ones}, "value has shape (3, 2), expected (4, 2): one row more than reward"),
    (actor_critic.actor_critic_losses, {"value": poisoned(torch.ones(4, 2))}, not_finite("value", ones)),
    (actor_critic.actor_critic_losses, {"reward": poisoned(ones), "trusted": ~mask}, not_finite("reward", ones)),
    *[(actor_critic.actor_critic_losses, {n: wide.bool()}, wrong_shape(n, (3, 5), (3, 2), "reward")) for n in ("is_transition", "trusted")],
    *[(actor_critic.actor_critic_losses, {n: ones}, not_mask(n)) for n in ("is_transition", "trusted")],
    (actor_critic.actor_critic_losses, {"action": action + 4}, "action runs from 4 to 4, expected 0 to 3"),
    # PopArt and PixelControl
    (popart.sums, {"learnable": ones}, not_mask("learnable")),
    (popart.sums, {"task": torch.tensor([0, 1, 0])}, wrong_shape("task", (3,), (2,), "column")),
    (popart.sums, {"task": task + 1}, "task runs from 1 to 2, expected 0 to 1"),
    (popart.sums, {"target": poisoned(ones)}, not_finite("target", ones)),
    (popart.normalise, {"task": task - 1}, "task runs from -1 to 0, expected 0 to 1"),
    (popart.normalise, {"task": task.float()}, "task is torch.float32, expected integers; call task.long() first"),
    *[(f, {"q": q.half()}, wrong_type("q", half)) for f in (pixel_control.q_targets, pixel_control.q_loss)],
    (pixel_control.q_targets, {"q": q[1:]}, "cumulant has shape (3, 2, 1, 1), expected (3, 2, 1, 1) for q (3, 2, 5, 1, 1)"),
    (pixel_control.q_targets, {"discount": wide}, wrong_shape("discount", (3, 5), (3, 2), "learnable")),
    (pixel_control.q_targets, {"cumulant": cumulant[1:]}, "cumulant has shape (2, 2, 1, 1), expected (3, 2, 1, 1) for q (4, 2, 5, 1, 1)"),
    (pixel_control.q_targets, {"q": poisoned(torch.zeros(4, 2, 5, 2, 2)), "cumulant": torch.zeros(3, 2, 2, 2)}, not_finite("q", q)),
    (pixel_control.q_targets, {"cumulant": poisoned(torch.zeros(3, 2, 2, 2)), "q": torch.zeros(4, 2, 5, 2, 2)}, not_finite("cumulant", cumulant)),
    (pixel_control.q_loss, {"action": action[1:]}, wrong_shape("action", (2, 2), (3, 2), "learnable")),
    (pixel_control.q_loss, {"action": action + 5}, "action runs from 5 to 5, expected 0 to 4"),
    # the families
    *[(f, {"parameters": ones}, "parameters has shape (3, 2), expected a last dimension of 4") for f in FAMILY_METHODS],
    *[(f, {"parameters": logits.half()}, wrong_type("parameters", half)) for f in (four.log_prob, pair.entropy)],
    *[(f, {"parameters": logits - math.inf}, NAN.format(f.__self__)) for f in FAMILY_METHODS],
    (four.log_prob, {"action": action[1:]}, "action has shape (2, 2), expected (3, 2) for parameters (3, 2, 4)"),
    (four.log_prob, {"action": action.float()}, "action is torch.float32, expected integers; call action.long() first"),
    *[(four.log_prob, {"action": action + n}, f"action runs from {n} to {n}, expected 0 to 3") for n in (-1, 4)],
    (pair.log_prob, {"action": torch.tensor([0, 2]).expand(3, 2, 2)}, "action runs from 2 to 2, expected 0 to 1"),
    (pair.log_prob, {"action": action}, "action has shape (3, 2), expected (3, 2, 2) for parameters (3, 2, 4)"),
    (gaussian.log_prob, {"parameters": torch.zeros(3, 2, 2)}, "action has shape (3, 1), expected (3, 2, 1) for parameters (3, 2, 2)"),
    (gaussian.log_prob, {"action": torch.zeros(3, 1).half()}, wrong_type("action", half)),
    (gaussian.log_prob, {"action": torch.tensor([[0.0], [math.inf], [0.0]])}, not_finite("action", ones, "inf").replace("(1, 1)", "(1, 0)")),
    (gaussian.entropy, {"parameters": logits}, "parameters has shape (3, 2, 4), expected a last dimension of 2"),
    (gaussian.to_environment, {"action": ones}, "action has shape (3, 2), expected a last dimension of 1"),
    (gaussian.joint_log_probs, {"parameters": torch.zeros(3, 2)}, f"the actions of {gaussian} cannot be enumerated; use a sampled estimate, as kl_to_implied does"),
    *[(DiagonalGaussian, {"low": (low,), "high": (high,)}, f"bounds ({low}, {high}) are neither two finite numbers in order nor (-inf, inf); give a dimension with one bound a second one")
      for low, high in ((-math.inf, 1.0), (0.0, math.inf), (1.0, 1.0), (math.nan, 1.0))],
]  # fmt: skip


def name_of(case):
    function, overrides, _ = case
    return f"{getattr(function, '__qualname__', function)}-{'-'.join(overrides)}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_bad_input_gets_one_clear_error(case):
    function, overrides, message = case
    with pytest.raises(InputError) as error:
        function(**{**GOOD.get(function, {}), **overrides})
    assert str(error.value) == message


def test_an_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)


def test_unchecked_functions_do_not_look_at_their_input(monkeypatch):
    bad = {**RETURNS, "value": poisoned(ones)}
    with checks.unchecked():
        assert not checks.active()
        assert vtrace(**bad).target.isnan().any()
        with checks.unchecked():
            assert not checks.active()
        assert not checks.active()
    assert checks.active()
    with pytest.raises(InputError):
        vtrace(**bad)
    looks = []
    monkeypatch.setattr(torch.Tensor, "isfinite", looks.append)
    with checks.unchecked():
        for function, arguments in GOOD.items():
            function(**arguments)
    assert looks == []


def test_checks_return_after_an_error_inside():
    with pytest.raises(RuntimeError), checks.unchecked():
        raise RuntimeError
    assert checks.active()
