"""What LASER's mathematics costs: the trusted return, and the whole loss with its gradient.

Beside ours in the same run: the loop over time that most IMPALA code has, and rlax's V-trace if it is installed. Times are
medians; compare the ratios within one table, not times between machines.
Run: python benchmarks/loss.py [--device cuda] [--csv FILE]
"""

import argparse
import csv
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laser_rl.ops import actor_critic, checks, trust_region, vtrace
from laser_rl.ops.distributions import Categorical

SHAPES = [(20, 32), (20, 128), (80, 32), (80, 128)]
ACTIONS = 18
BOUND, VALUE_COST, ENTROPY_COST = 0.03, 0.5, 0.01
WARM_UPS, ROUNDS, SECONDS_A_ROUND = 3, 9, 0.05
Inputs = dict[str, Tensor]


def make_inputs(steps: int, batch: int, device: str) -> Inputs:
    """A batch with a few episode ends and a behaviour near the policy: about half of the steps are trusted."""
    generator = torch.Generator().manual_seed(0)
    policy = torch.randn(steps, batch, ACTIONS, generator=generator)
    behaviour = policy + 0.5 * torch.randn(steps, batch, ACTIONS, generator=generator)
    inputs = {
        "policy": policy,
        "value": torch.randn(steps + 1, batch, generator=generator),
        "behaviour": behaviour,
        "action": Categorical(ACTIONS).sample(behaviour, generator),
        "reward": torch.randn(steps, batch, generator=generator),
        "discount": 0.99 * (torch.rand(steps, batch, generator=generator) > 0.02),
        "is_transition": torch.rand(steps, batch, generator=generator) > 0.02,
        "online": torch.arange(batch) < batch // 8,
    }
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    inputs["policy"].requires_grad_()
    inputs["value"].requires_grad_()
    return inputs


def our_loss(
    policy: Tensor,
    value: Tensor,
    behaviour: Tensor,
    action: Tensor,
    reward: Tensor,
    discount: Tensor,
    is_transition: Tensor,
    online: Tensor,
) -> Tensor:
    """The trusted actor-critic loss, from `ops`."""
    family = Categorical(ACTIONS)
    trusted = trust_region.within(trust_region.kl_to_implied(family, policy, behaviour), BOUND)
    losses = actor_critic.actor_critic_losses(
        family, policy, value, behaviour, action, reward, discount, is_transition, online, trusted
    )
    return (losses.policy + VALUE_COST * losses.value + ENTROPY_COST * losses.entropy).sum()


def loop_return(
    ratio: Tensor, learnable: Tensor, reward: Tensor, discount: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """V-trace as a loop over time: targets and advantages."""
    rho = ratio.clamp(max=1.0)
    td_error = rho * (reward + discount * value[1:] - value[:-1])
    acc, gains = torch.zeros_like(reward[0]), []
    for t in reversed(range(len(reward))):
        acc = learnable[t] * (td_error[t] + discount[t] * rho[t] * acc)
        gains.append(acc)
    target = torch.cat([torch.stack(gains[::-1]) + value[:-1], value[-1:]])
    return target[:-1], rho * (reward + discount * target[1:] - value[:-1])


def loop_loss(
    policy: Tensor,
    value: Tensor,
    behaviour: Tensor,
    action: Tensor,
    reward: Tensor,
    discount: Tensor,
    is_transition: Tensor,
    online: Tensor,
) -> Tensor:
    """The same loss written plainly, with the loop."""
    log_pi, log_mu = policy.log_softmax(-1), behaviour.log_softmax(-1)
    with torch.no_grad():
        common = torch.minimum(log_pi, log_mu)
        implied = common - common.logsumexp(-1, keepdim=True)
        learnable = ((log_pi.exp() * (log_pi - implied)).sum(-1) < BOUND) & is_transition
    log_prob = log_pi.gather(-1, action[..., None])[..., 0]
    with torch.no_grad():
        ratio = (log_prob - log_mu.gather(-1, action[..., None])[..., 0]).exp()
        target, advantage = loop_return(ratio, learnable, reward, discount, value)
    entropy = -(log_pi.exp() * log_pi).sum(-1)
    policy_loss = -(log_prob * advantage)
    value_loss = 0.5 * (target - value[:-1]) ** 2
    return (learnable * (policy_loss + VALUE_COST * value_loss - ENTROPY_COST * entropy * online)).sum()


def with_gradient(loss: Callable[..., Tensor], inputs: Inputs) -> Callable[[], Any]:
    """Forward and backward."""
    return lambda: torch.autograd.grad(loss(**inputs), [inputs["policy"], inputs["value"]])


def return_inputs(inputs: Inputs) -> tuple[Tensor, ...]:
    """log-ratio, learnable, reward, discount, value."""
    with torch.no_grad():
        family = Categorical(ACTIONS)
        log_ratio = family.log_prob(inputs["policy"], inputs["action"]) - family.log_prob(
            inputs["behaviour"], inputs["action"]
        )
    return log_ratio, inputs["is_transition"], inputs["reward"], inputs["discount"], inputs["value"].detach()


def rlax_return(inputs: Inputs) -> Callable[[], Any] | None:
    """The V-trace of rlax, jitted over the batch; without λ, which it does not have. None if rlax is not installed."""
    try:
        import jax  # noqa: PLC0415
        import rlax  # noqa: PLC0415
    except ImportError:
        return None
    log_ratio, _, reward, discount, value = [tensor.cpu().numpy() for tensor in return_inputs(inputs)]
    batched = jax.vmap(rlax.vtrace_td_error_and_advantage, in_axes=1, out_axes=1)
    arguments = [
        jax.numpy.asarray(array) for array in (value[:-1], value[1:], reward, discount, jax.numpy.exp(log_ratio))
    ]
    compiled = jax.jit(batched)
    return lambda: jax.block_until_ready(compiled(*arguments))


def median_microseconds(function: Callable[[], Any], device: str) -> float:
    """Median over rounds of the mean time of one call."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(WARM_UPS):
        function()
    synchronise()
    start = time.perf_counter()
    function()
    synchronise()
    calls = max(1, int(SECONDS_A_ROUND / (time.perf_counter() - start)))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        synchronise()
        rounds.append((time.perf_counter() - start) / calls)
    return 1e6 * statistics.median(rounds)


def candidates(inputs: Inputs) -> list[tuple[str, str, Callable[[], Any] | None, bool]]:
    """(what, variant, call, checked)."""
    log_ratio, learnable, reward, discount, value = return_inputs(inputs)
    ours = lambda: vtrace.vtrace(log_ratio, learnable, reward, discount, value[:-1], value[1:])  # noqa: E731
    loop = lambda: loop_return(log_ratio.exp(), learnable, reward, discount, value)  # noqa: E731
    return [
        ("return", "loop, eager", loop, False),
        ("return", "ours, eager", ours, False),
        ("return", "ours, eager, checked", ours, True),
        ("return", "loop, compiled", torch.compile(loop), False),
        ("return", "ours, compiled", torch.compile(ours), False),
        ("return", "rlax, jitted", rlax_return(inputs), False),
        ("loss + gradient", "loop, eager", with_gradient(loop_loss, inputs), False),
        ("loss + gradient", "ours, eager", with_gradient(our_loss, inputs), False),
        ("loss + gradient", "ours, eager, checked", with_gradient(our_loss, inputs), True),
        ("loss + gradient", "loop, compiled", with_gradient(torch.compile(loop_loss), inputs), False),
        ("loss + gradient", "ours, compiled", with_gradient(torch.compile(our_loss), inputs), False),
    ]


def main() -> None:
    """Measure all candidates on all shapes and print one table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device = arguments.device
    machine = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.processor() or platform.machine()} CPU, 1 thread"
    )
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {machine}; microseconds, median of {ROUNDS} rounds; {ACTIONS} actions, float32")
    records = []
    for steps, batch in SHAPES:
        torch._dynamo.reset()  # noqa: SLF001
        inputs = make_inputs(steps, batch, device)
        difference = (our_loss(**inputs) - loop_loss(**inputs)).abs() / loop_loss(**inputs).abs()
        assert difference < 1e-4, f"ours and the loop differ by {difference:.1e}: nothing to compare"
        print(f"\n| T = {steps}, B = {batch} | | µs | loop, eager = 1 |\n|---|---|---|---|")
        base: dict[str, float] = {}
        for what, variant, call, checked in candidates(inputs):
            if call is None:
                print(f"| {what} | {variant} | not installed | |")
                continue
            with nullcontext() if checked else checks.unchecked():
                spent = median_microseconds(call, device)
            base.setdefault(what, spent)
            print(f"| {what} | {variant} | {spent:.0f} | {spent / base[what]:.2f} |", flush=True)
            records.append({"T": steps, "B": batch, "what": what, "variant": variant, "us": round(spent, 1)})
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, records[0])
            writer.writeheader()
            writer.writerows(records)


if __name__ == "__main__":
    main()
