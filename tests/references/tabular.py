"""Exact quantities of small MDPs (transition [S, A, S], reward [S, A], policies [S, A]) and Propositions 2 and 3."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from . import returns

f64 = np.float64
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Trajectory = tuple[list[int], list[int], float]


def policy_value(transition: Floats, reward: Floats, gamma: float, pi: Floats) -> Floats:
    """V^pi: the Bellman equation, swept until no state moves by more than 1e-14, or 20,000 times."""
    states, actions = np.shape(reward)
    value = [0.0] * states
    for _ in range(20_000):
        swept = []
        for s in range(states):
            total = 0.0
            for a in range(actions):
                following = sum(float(transition[s, a, n]) * value[n] for n in range(states))
                total += float(pi[s, a]) * (float(reward[s, a]) + gamma * following)
            swept.append(total)
        largest_move = max(abs(new - old) for new, old in zip(swept, value, strict=True))
        value = swept
        if largest_move <= 1e-14:
            break
    return np.array(value, f64)


def trajectories(transition: Floats, mu: Floats, start: int, steps: int) -> Iterator[Trajectory]:
    """Every (states [steps + 1], actions [steps], probability) from start that mu can produce."""
    if steps == 0:
        yield [start], [], 1.0
        return
    states, actions = np.shape(mu)
    for a in range(actions):
        for following in range(states):
            step_probability = float(mu[start, a]) * float(transition[start, a, following])
            if step_probability == 0.0:
                continue
            for later_states, later_actions, probability in trajectories(transition, mu, following, steps - 1):
                yield [start, *later_states], [a, *later_actions], step_probability * probability


def _columns(
    states: list[int],
    actions: list[int],
    reward: Floats,
    gamma: float,
    pi: Floats,
    mu: Floats,
    trusted: Bools,
    value: Floats,
) -> tuple[Floats, Bools, Floats, Floats, Floats]:
    """One trajectory as a batch of one: ratio, learnable, reward, discount [T, 1] and value [T + 1, 1]."""
    visited = list(zip(states[:-1], actions, strict=True))
    ratio = np.array([[float(pi[s, a]) / float(mu[s, a])] for s, a in visited], f64)
    learnable = np.array([[bool(trusted[s])] for s, _ in visited], np.bool_)
    rewards = np.array([[float(reward[s, a])] for s, a in visited], f64)
    discount = np.array([[gamma] for _ in visited], f64)
    values = np.array([[float(value[s])] for s in states], f64)
    return ratio, learnable, rewards, discount, values


def expected_vtrace(
    transition: Floats,
    reward: Floats,
    gamma: float,
    pi: Floats,
    mu: Floats,
    trusted: Bools,
    value: Floats,
    start: int,
    steps: int,
    clip_rho: float,
    clip_c: float,
) -> float:
    """E_mu[G_Vtrace(start)] over every trajectory of the given length (eq. return_vtrace at row 0)."""
    terms = []
    for states, actions, probability in trajectories(transition, mu, start, steps):
        columns = _columns(states, actions, reward, gamma, pi, mu, trusted, value)
        terms.append(probability * float(returns.vtrace_target(*columns, clip_rho, clip_c)[0, 0]))
    return math.fsum(terms)


def expected_is(
    transition: Floats,
    reward: Floats,
    gamma: float,
    pi: Floats,
    mu: Floats,
    trusted: Bools,
    value: Floats,
    start: int,
    steps: int,
) -> float:
    """E_mu[G_IS(start)] over every trajectory of the given length (eq. return_is at row 0)."""
    terms = []
    for states, actions, probability in trajectories(transition, mu, start, steps):
        columns = _columns(states, actions, reward, gamma, pi, mu, trusted, value)
        terms.append(probability * float(returns.is_target(*columns)[0, 0]))
    return math.fsum(terms)


def distorted_q(q: Floats, pi: Floats, mu: Floats, clip_rho: float) -> Floats:
    """Proposition 2: Q^omega(a) = Q(a) omega(a), omega(a) = min[1, clip_rho mu(a) / pi(a)], 1 where pi(a) = 0."""
    result = []
    for q_a, pi_a, mu_a in zip(q, pi, mu, strict=True):
        omega = min(1.0, clip_rho * float(mu_a) / float(pi_a)) if float(pi_a) > 0.0 else 1.0
        result.append(omega * float(q_a))
    return np.array(result, f64)


def regret(q: Floats, distorted: Floats) -> float:
    """Section 3: R = max_b Q(b) - Q(a_actual), a_actual = argmax_a Q^omega(a), the first one of a tie."""
    actual = 0
    for a in range(len(distorted)):
        if float(distorted[a]) > float(distorted[actual]):
            actual = a
    return max(float(x) for x in q) - float(q[actual])


def q_alpha(q: Floats, distorted: Floats, d_pi: float, d_mu: float, alpha: float) -> Floats:
    """Proposition 3: Q^alpha = Q d^pi(s) alpha + Q^omega d^mu(s) (1 - alpha)."""
    mixed = []
    for q_a, distorted_a in zip(q, distorted, strict=True):
        mixed.append(float(q_a) * d_pi * alpha + float(distorted_a) * d_mu * (1.0 - alpha))
    return np.array(mixed, f64)
