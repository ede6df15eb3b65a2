"""Panels as data: each number is of the members it says."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.metrics.history import History
from laser_rl.metrics.standing import Exploit, copies
from laser_rl.view.panels import PANELS, Asked, founders
from laser_rl.view.runs import Files, Subject, subject_of
from tests.metrics.test_sweep_rows import TIMES, a_sweep, trust


@pytest.fixture(scope="module", params=[3, 9])
def sweep(request, tmp_path_factory):
    return subject_of(a_sweep(tmp_path_factory.mktemp("sweep"), request.param, pbt=True)), request.param


def of_rows(rows, members=3):
    history = History()
    history.add(rows)
    return Subject(Path("x"), "x", history, Files({}, {"settings": [{} for _ in range(members)]}, []))


def row(step, member, **values):
    return {"kind": "train", "step": step, "update": step, "member": member, **values}


def panel(subject, name, **asked):
    return PANELS[name](subject, Asked(**asked))


def test_learner_is_down_and_source_across(sweep):
    subject, members = sweep
    found = np.array(panel(subject, "who")["trusted"])
    times = np.arange(TIMES - 9, TIMES + 1) / TIMES  # of the last ten rows
    expected = [[np.mean([trust(i, j, t) for t in times]) for j in range(members)] for i in range(members)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_ages_shares_and_divergences_are_in_their_places(sweep):
    subject, members = sweep
    found = panel(subject, "who")
    expected = [[0.98 - 0.02 * k - 0.12 * age for age in range(5)] for k in range(members)]
    np.testing.assert_allclose(np.array(found["by_age"], float), expected, rtol=1e-4)
    expected = [[0.05 * abs(i - j) + 0.01 * (i > j) for j in range(members)] for i in range(members)]
    np.testing.assert_allclose(np.array(found["divergence"], float), expected, rtol=1e-4)
    shares = panel(subject, "replay")
    np.testing.assert_allclose(np.sum([line["y"] for line in shares["lines"]], axis=0), 1, atol=1e-4)
    assert shares["x"][-1] == members * 60_000
    ages = np.array([line["y"] for line in panel(subject, "ages")["lines"]])
    assert ages.shape == (5, TIMES)
    assert (np.diff(ages, axis=0) >= 0).all()


@pytest.mark.parametrize("name", ["returns", "trust", "learning-rate", "steps", "replay", "evaluations"])
def test_a_line_is_of_the_member_that_it_names(sweep, name):
    subject, members = sweep
    lines = panel(subject, name)["lines"]
    assert [line["member"] for line in lines] == list(range(members))
    assert [line["name"].removeprefix("steps of ") for line in lines] == [str(k) for k in range(members)]


def test_the_trust_of_one_learner_is_its_own(sweep):
    subject, members = sweep
    for learner in (0, members - 1):
        lines = panel(subject, "trust", learner=learner)["lines"]
        np.testing.assert_allclose(
            [line["y"][-1] for line in lines], [trust(learner, j) for j in range(members)], rtol=1e-4
        )


def test_lineage_and_copies_say_who_descends_from_whom(sweep):
    subject, members = sweep
    data, history = panel(subject, "lineage"), copies(subject.history)
    assert data["copies"] == [(one.step, one.donor, one.member) for one in history]
    assert {one.member for one in history} == set(range(members))
    expected = founders(history, members)
    assert [(m, start, founder) for m, start, _, founder in data["pieces"]] == [
        (member, step, founder) for member in range(members) for step, founder in expected[member]
    ]
    starts = [
        f"At {one.step:,} steps member {one.member} copied member {one.donor} (score " for one in reversed(history)
    ]
    sentences = panel(subject, "copies")["sentences"]
    assert all(text.startswith(start) for text, start in zip(sentences, starts, strict=True))
    first = history[0]
    assert first.score == 10 + first.member
    assert set(first.before) == set(first.after) == {"learning_rate", "entropy_cost"}


def test_trials_of_a_search_end_where_the_next_of_their_member_begins():
    def birth(step, member, trial, rate, **more):
        moved = {"before_learning_rate": 1.0, "after_learning_rate": rate}
        known = {"member": member, "donor": member, "donor_score": 0.0, "trial": trial, **moved, **more}
        return {"kind": "event", "event": "exploit", "step": step, "update": step, **known}

    rows = [
        birth(40, 1, 3, 2.0, ended="pruned", score=0.25),
        birth(60, 1, 4, 3.0, ended="complete", score=7.0, before_learning_rate=2.0),
        birth(60, 0, 5, 4.0, ended="failed", donor=2),
        *(row(100, member, return_mean=10.0 + member) for member in range(3)),
    ]
    found = panel(of_rows(rows), "trials")
    assert found["columns"] == ["trial", "member", "from step", "to step", "how it ended", "score", "learning_rate"]
    assert found["rows"] == [
        [0, 0, 0, 60, "failed", None, 1.0],
        [1, 1, 0, 40, "pruned", 0.25, 1.0],
        [2, 2, 0, 100, "goes on", 12.0, None],
        [3, 1, 40, 60, "complete", 7.0, 2.0],
        [4, 1, 60, 100, "goes on", 11.0, 3.0],
        [5, 0, 60, 100, "goes on", 10.0, 4.0],
    ]
    last, *_ = panel(of_rows(rows), "copies")["sentences"]
    assert last == (
        "At 60 steps trial 5 began in member 0, with the parameters of member 2: learning_rate 4. The one before was failed."
    )
    assert panel(of_rows(rows), "lineage")["copies"] == [(60, 2, 0)]
    assert panel(of_rows(rows[3:]), "trials")["rows"] == []


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda pair: pair[0] != pair[1]), max_size=20))
def test_founders_are_what_copying_marked_cards_gives(moves):
    history = [Exploit(0, step, member, donor, 0.0, 1.0, {}, {}) for step, (member, donor) in enumerate(moves, start=1)]
    cards = list(range(5))
    for member, donor in moves:
        cards[member] = cards[donor]
    found = founders(history, 5)
    assert [found[member][-1][1] for member in range(5)] == cards
    assert sum(len(changes) for changes in found.values()) == 5 + len(moves)


def test_what_is_not_known_is_empty_and_never_breaks_json():
    nothing = [row(10, k, note="x") for k in range(3)] + [{"kind": "sweep", "step": 10, "update": 1}]
    for rows in (nothing, []):
        for name, make in PANELS.items():
            data = json.loads(json.dumps(make(of_rows(rows), Asked("time")), allow_nan=False))
            assert not any(data.get(part) for part in ("lines", "rows", "copies", "points", "sentences")), name
    assert panel(of_rows(nothing), "who")["divergence"] is None


def test_a_line_alone_has_a_band_only_where_points_stand_for_several_rows():
    for count, expected in ((50, False), (5000, True)):
        data = panel(of_rows([row(n, 0, entropy=float(n % 7)) for n in range(count)], 1), "entropy")
        assert ("low" in data["lines"][0]) == expected
