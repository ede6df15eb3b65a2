"""Numbers of a sweep, from the rows of all its members: returns, who trusts whose experience, what is in the replay, who copied whom."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.metrics.curves import Curve, band, curve, returns
from laser_rl.metrics.sink import Kind, Row

Array = NDArray[np.float64]
AGES = ("below 10", "below 100", "below 1,000", "below 10,000", "older")  # in updates, as `acceptance_age_0` to `_4`
PERCENTILES = (0, 25, 50, 75, 100)  # of the age of what is in the replay


class Spread(NamedTuple):
    """Returns of all members on common steps [n]."""

    steps: Array
    best: Array
    best_member: NDArray[np.int64]
    mean: Array
    low: Array
    high: Array


class Copy(NamedTuple):
    """An exploit of population based training: `member` took the parameters of `donor`, and new settings."""

    step: int
    member: int
    donor: int
    score: float
    donor_score: float
    before: dict[str, float]
    after: dict[str, float]


def by_member(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """The rows of each member, in the order of members; rows of the sweep itself are left out.

    >>> by_member([{"kind": "train", "member": 1}, {"kind": "sweep"}, {"kind": "train", "member": 0}])
    {0: [{'kind': 'train', 'member': 0}], 1: [{'kind': 'train', 'member': 1}]}
    """
    found: dict[int, list[Row]] = {}
    for row in rows:
        member = row.get("member")
        if isinstance(member, int):
            found.setdefault(member, []).append(row)
    return dict(sorted(found.items()))


def member_returns(rows: Iterable[Row]) -> dict[int, Curve]:
    """Mean return of the last 100 episodes over steps, for each member that has ended one.

    >>> rows = [{"kind": "train", "step": 10, "member": member, "return_mean": 1.5} for member in (0, 1)]
    >>> sorted(member_returns(rows))
    [0, 1]
    """
    found = {member: returns(own) for member, own in by_member(rows).items()}
    return {member: pair for member, pair in found.items() if len(pair[0])}


def spread(curves: Mapping[int, Curve]) -> Spread:
    """Best, mean and range of the members' curves, at the steps where all of them have numbers.

    `best` is what the paper plots, the best agent of the sweep at each time. It is a maximum over members of a noisy mean, chosen anew
    at each step, and thus optimistic: no single member need have learned like that, and more members make it higher by chance alone.

    >>> flat, rising = (np.array([0.0, 10.0]), np.array([4.0, 4.0])), (np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    >>> found = spread({0: flat, 3: rising})
    >>> found.best[[0, -1]].tolist(), found.best_member[[0, -1]].tolist(), found.mean[-1].item()
    ([4.0, 10.0], [0, 3], 7.0)
    """
    if not curves:
        nothing = np.empty(0)
        return Spread(nothing, nothing, np.empty(0, np.int64), nothing, nothing, nothing)
    steps, values = band(list(curves.values()))
    members = np.array(list(curves), np.int64)
    low, high = values.min(0), values.max(0)
    return Spread(steps, high, members[values.argmax(0)], values.mean(0), low, high)


def acceptance_matrix(rows: Iterable[Row], members: int, *, last: int = 10, until: float = np.inf) -> Array:
    """[learner, source]: the share of the source's replayed steps that the learner trusts; NaN where none were replayed.

    Each cell is the mean over the learner's newest `last` training rows not after step `until`.

    >>> row = {"kind": "train", "step": 10, "member": 0, "acceptance_from_0": 1.0, "acceptance_from_1": 0.25}
    >>> acceptance_matrix([row], 2)
    array([[1.  , 0.25],
           [ nan,  nan]])
    """
    columns = [f"acceptance_from_{source}" for source in range(members)]
    return _newest(rows, columns, members, last=last, until=until)


def acceptance_over_time(
    rows: Iterable[Row], members: int, *, times: int = 4, last: int = 10
) -> tuple[Array, NDArray[np.float64]]:
    """`acceptance_matrix` at equally distant steps up to the last: steps [times], matrices [times, learner, source].

    >>> rows = [{"kind": "train", "step": step, "member": 0, "acceptance_from_0": step / 100} for step in (25, 50, 75, 100)]
    >>> steps, matrices = acceptance_over_time(rows, 1, times=2, last=1)
    >>> steps.tolist(), matrices[:, 0, 0].tolist()
    ([50.0, 100.0], [0.5, 1.0])
    """
    rows = [row for row in rows if row["kind"] == "train"]
    end = max((float(row["step"]) for row in rows), default=0.0)
    steps = np.linspace(0, end, times + 1)[1:]
    return steps, np.stack([acceptance_matrix(rows, members, last=last, until=step) for step in steps])


def own_and_others(rows: Iterable[Row], member: int) -> tuple[Curve, Curve]:
    """Over steps, the share of its own and of others' replayed steps that a member trusts; each other member counts the same.

    >>> row = {"kind": "train", "step": 10, "member": 1, "acceptance_from_0": 0.2, "acceptance_from_1": 1.0, "acceptance_from_2": 0.4}
    >>> own, others = own_and_others([row], 1)
    >>> own[1].tolist(), others[1].round(3).tolist()
    ([1.0], [0.3])
    """
    derived = [
        {"kind": "train", "step": row["step"], **_own_and_others(row, member)}
        for row in rows
        if row["kind"] == "train" and row.get("member") == member
    ]
    return curve(derived, "own"), curve(derived, "others")


def own_and_others_of(matrix: Array, member: int) -> tuple[float, float]:
    """The same two numbers from an `acceptance_matrix`; NaN where there are none.

    >>> own_and_others_of(np.array([[1.0, 0.5, np.nan], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), 0)
    (1.0, 0.5)
    """
    others = np.delete(matrix[member], member)
    others = others[np.isfinite(others)]
    return float(matrix[member, member]), float(others.mean()) if len(others) else np.nan


def acceptance_by_age(rows: Iterable[Row], members: int, *, last: int = 10) -> Array:
    """[member, age class]: the share that is trusted of replayed steps of that age; NaN where none were replayed.

    >>> acceptance_by_age([{"kind": "train", "step": 10, "member": 0, "acceptance_age_1": 0.5}], 1)
    array([[nan, 0.5, nan, nan, nan]])
    """
    return _newest(rows, [f"acceptance_age_{age}" for age in range(len(AGES))], members, last=last)


def divergence_matrix(rows: Iterable[Row], members: int, *, last: int = 10) -> Array:
    """[i, j]: mean KL(pi_i || pi_j) on replayed states over the newest `last` rows that have it; 0 on the diagonal.

    >>> divergence_matrix([{"kind": "sweep", "step": 10, "divergence_0_1": 0.5, "divergence_1_0": 0.25}], 2)
    array([[0.  , 0.5 ],
           [0.25, 0.  ]])
    """
    own = [row for row in rows if row["kind"] == "sweep" and any(name.startswith("divergence_") for name in row)]
    cells = [[_mean(own[-last:], f"divergence_{i}_{j}") for j in range(members)] for i in range(members)]
    matrix = np.array(cells, dtype=np.float64).reshape(members, members)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def composition(rows: Iterable[Row], members: int) -> tuple[Array, Array]:
    """Steps [n] and the share of the replay that each member produced [members, n].

    >>> steps, shares = composition([{"kind": "sweep", "step": 10, "share_of_0": 0.75, "share_of_1": 0.25}], 2)
    >>> steps.tolist(), shares.tolist()
    ([10.0], [[0.75], [0.25]])
    """
    return _columns(rows, [f"share_of_{member}" for member in range(members)], missing=0.0)


def age_percentiles(rows: Iterable[Row]) -> tuple[Array, Array]:
    """Steps [n] and the `PERCENTILES` of the age in updates of what is in the replay [5, n].

    >>> row = {"kind": "sweep", "step": 10, "age_0": 0, "age_25": 5, "age_50": 10, "age_75": 15, "age_100": 20}
    >>> age_percentiles([row])[1].ravel().tolist()
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    return _columns(rows, [f"age_{percentile}" for percentile in PERCENTILES], missing=np.nan)


def copies(rows: Iterable[Row]) -> list[Copy]:
    """All exploits, in the order in which they happened.

    >>> row = {"kind": "event", "event": "exploit", "step": 10, "member": 1, "donor": 0, "score": 2.0, "donor_score": 5.0,
    ...        "before_learning_rate": 0.1, "after_learning_rate": 0.2}
    >>> copies([row])[0].after
    {'learning_rate': 0.2}
    """
    return [
        Copy(
            int(row["step"]),
            int(row["member"]),
            int(row["donor"]),
            float(row.get("score", np.nan)),
            float(row.get("donor_score", np.nan)),
            _prefixed(row, "before_"),
            _prefixed(row, "after_"),
        )
        for row in rows
        if row["kind"] == "event" and row.get("event") == "exploit" and "member" in row and "donor" in row
    ]


def founders(history: Iterable[Copy], members: int) -> dict[int, list[tuple[int, int]]]:
    """For each member the steps from which on it carried whose first parameters: (step, founder), starting with (0, itself).

    >>> first, second = Copy(10, 1, 0, 0.0, 1.0, {}, {}), Copy(20, 2, 1, 0.0, 1.0, {}, {})
    >>> founders([first, second], 3)[2]
    [(0, 2), (20, 0)]
    """
    found = {member: [(0, member)] for member in range(members)}
    for copy in history:
        if copy.member in found and copy.donor in found:
            found[copy.member].append((copy.step, found[copy.donor][-1][1]))
    return found


def _own_and_others(row: Row, member: int) -> Row:
    """The two shares of one training row, where it has them."""
    own = f"acceptance_from_{member}"
    shares = {name: _number(value) for name, value in row.items() if name.startswith("acceptance_from_")}
    others = [share for name, share in shares.items() if name != own and np.isfinite(share)]
    found: Row = {"own": shares[own]} if own in shares else {}
    return found | ({"others": sum(others) / len(others)} if others else {})


def _newest(rows: Iterable[Row], names: Sequence[str], members: int, *, last: int, until: float = np.inf) -> Array:
    """[member, name]: means over the newest `last` training rows of each member."""
    trained = by_member(row for row in rows if row["kind"] == "train" and float(row["step"]) <= until)
    cells = [[_mean(trained.get(member, [])[-last:], name) for name in names] for member in range(members)]
    return np.array(cells, dtype=np.float64).reshape(members, len(names))


def _mean(rows: Iterable[Row], name: str) -> float:
    values = [value for row in rows if np.isfinite(value := _number(row.get(name)))]
    return sum(values) / len(values) if values else np.nan


def _columns(rows: Iterable[Row], names: Sequence[str], *, missing: float, kind: Kind = "sweep") -> tuple[Array, Array]:
    """Steps [n] and values [names, n] of the rows that have any of the names."""
    own = [row for row in rows if row["kind"] == kind and any(name in row for name in names)]
    values = np.array([[_number(row.get(name, missing)) for row in own] for name in names], dtype=np.float64)
    return np.array([float(row["step"]) for row in own]), values.reshape(len(names), len(own))


def _prefixed(row: Row, prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(value)
        for name, value in row.items()
        if name.startswith(prefix) and isinstance(value, int | float)
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan
