"""Runs give the numbers that are stored in `runs.json`, and recipes the settings of `settings.json`."""

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.fingerprints import CASES, PLAIN, RUNS, SETTINGS, arithmetic, differences, fingerprint
from tests.fingerprints.settings import all_settings

HOW = "if this change is meant, store the new numbers with: python -m tests.fingerprints --write"
STORED = json.loads(RUNS.read_text())


@pytest.fixture(scope="module")
def plain():
    """A process with plain arithmetic, and without the checks of shapes that tests put around every function."""
    before = {name: os.environ.get(name) for name in PLAIN}
    os.environ.update(PLAIN)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(arithmetic).result()  # it is there now, so the variables can go
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        yield process


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if case.slow else ()) for name, case in CASES.items()]
)
def test_a_run_gives_the_stored_numbers(name, plain):
    found, stored = plain.submit(fingerprint, name).result(), STORED["cases"][CASES[name].like or name]
    here = plain.submit(arithmetic).result()
    same, makers = here == STORED["arithmetic"], [{**one, "maker": ""} for one in (here, STORED["arithmetic"])]
    lines = differences(found.get("counted"), stored.get("counted"))
    if makers[0] == makers[1]:
        lines += differences(found["computed"], stored["computed"], "computed", rounded=not same)
    assert not lines, "\n".join([f"{name}: {len(lines)} numbers differ;", *lines, HOW])
    if makers[0] != makers[1]:
        pytest.skip(f"counts are as stored; hashes and means belong to {STORED['arithmetic']}, this is {here}")


def test_defaults_and_recipes_are_as_stored():
    lines = differences(all_settings(), json.loads(SETTINGS.read_text()))
    assert not lines, "\n".join([*lines, HOW])


def test_a_difference_is_named_by_its_place():
    stored = {"counted": {"rows": {"age": [1.0, 2.0]}, "version": 3}}
    found = {"counted": {"rows": {"age": [1.0, 2.5]}, "version": 3}, "more": 1}
    assert differences(found, stored) == ["counted.rows.age[1] is 2.5, stored is 2.0", "more is new"]
    assert differences(stored, stored) == []
    near = {"a_sha256": "1", "loss": [0.10001]}, {"a_sha256": "2", "loss": [0.1]}
    assert len(differences(*near)) == 2
    assert differences(*near, rounded=True) == []
    assert differences({"loss": 0.101}, {"loss": 0.1}, rounded=True) == ["loss is 0.101, stored is 0.1"]
    assert differences({"a": [1]}, {"a": [1, 2], "b": 0}) == ["a has 1 values, stored are 2", "b is missing"]


def test_every_case_is_stored_and_nothing_else():
    assert STORED["cases"].keys() == {name for name, case in CASES.items() if case.like is None}
