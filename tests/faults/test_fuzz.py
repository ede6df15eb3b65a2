"""A few hundred damaged and forged inputs for every reader; `make fuzz` feeds a hundred thousand."""

import logging

import pytest

from tests.fuzz.run import Crash, feed
from tests.fuzz.target import Target
from tests.fuzz.targets import targets

GROUPS = {
    "settings": [
        "settings, YAML",
        "settings, JSON",
        "sweep file, YAML",
        "sweep file, JSON",
        "config.json",
        "sweep.json",
    ],
    "manifests": ["manifest, mlp", "manifest, lstm"],
    "states": ["state, mlp", "state, lstm", "state, sweep"],
    "tensors": ["tensors, mlp", "tensors, lstm", "agent file"],
    "replay segments": ["replay segment"],
    "metrics": ["metrics.jsonl", "evaluations"],
    "other records": ["machine.json", "run.lock", "experiment.json", "experiment's part"],
}
INPUTS, OF_A_SWEEP = 30, 3  # a whole sweep is built for each of these
MOST_GROWTH_BYTES = 16 << 20


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    return targets(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.fault(14)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers near the largest there is overflow in means
@pytest.mark.parametrize("group", GROUPS)
def test_damaged_and_forged_files_are_refused_by_our_own_errors(every, group, figure, caplog):
    caplog.set_level(logging.CRITICAL)  # warnings of what is damaged are expected
    fed = [feed(name, every[name], OF_A_SWEEP if name == "state, sweep" else INPUTS) for name in GROUPS[group]]
    assert max(one.grown_bytes for one in fed) < MOST_GROWTH_BYTES
    inputs, refused = sum(one.inputs for one in fed), sum(one.refused for one in fed)
    figure(f"fuzzed {group}: {inputs} inputs, {refused} refused, {inputs - refused} read, 0 crashes")


def test_every_target_is_fed(every):
    assert sorted(every) == sorted(name for names in GROUPS.values() for name in names)


def test_a_crash_is_told_with_the_input_that_repeats_it():
    def careless(data, _):
        return data.decode("ascii")

    with pytest.raises(Crash, match=r"names, input \d+ .*UnicodeDecodeError.*--target 'names' --first \d+ --inputs 1"):
        feed("names", Target([b"plain text"], careless), 300)


def test_who_does_not_answer_is_cut_short(monkeypatch):
    def endless(_data, _number):
        while True:
            pass

    monkeypatch.setattr("tests.fuzz.run.LIMIT_S", 0.05)
    with pytest.raises(Crash, match=r"TooLong: expected an answer within 0\.05 s"):
        feed("endless", Target([b"x"], endless), 1)


def test_what_grows_is_measured():
    kept = []
    fed = feed("leak", Target([b"x"], lambda _data, _number: kept.append(bytearray(1 << 20))), 60)
    assert fed.grown_bytes > MOST_GROWTH_BYTES


def test_the_same_number_is_the_same_input_and_others_differ():
    target = Target([b'{"a": [1, 2, {"b": null}]}'], print, is_json=True)
    inputs = [target.input("x", number) for number in range(200)]
    assert inputs == [target.input("x", number) for number in range(200)]
    assert len(set(inputs)) > 100
