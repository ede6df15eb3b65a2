"""check-env, films and exports of environments with masks of actions and with several pictures."""

import json

import numpy as np
import pytest

from laser_rl import LASER
from laser_rl.cli import main
from laser_rl.errors import ConfigError
from laser_rl.tools.check_env import Bench, Order
from laser_rl.tools.check_process import Examination
from laser_rl.tools.onnx_policy import export_onnx
from laser_rl.training.evaluate import trained_of
from tests.envs.several import expected_parts

MASKED, BOOK, DRAWN = (f"tests.envs.several:{name}" for name in ("Forbidding", "MaskedBook", "Drawn"))
SMALL = {"hidden": (16,), "unroll_steps": 5, "slots": 2, "capacity_steps": 500, "batch_unrolls": 8, "seed": 1}


@pytest.mark.parametrize("where", ["info", "key"])
@pytest.mark.parametrize("several", [False, True])
def test_check_env_plays_only_what_is_legal(where, several):
    found = Examination(MASKED)
    options = json.dumps({"where": where, "several": several})
    Bench(Order(MASKED, steps=100, seconds=2.0, options=options), found.take).run()
    assert not found.of("defect")
    assert "9 to 9 steps" in found.facts["episodes"]  # an illegal action would have ended one earlier


def test_check_env_names_parts_and_mask(capsys):
    assert main(["check-env", BOOK, "--steps", "50", "--seconds", "1"]) == 0
    said = capsys.readouterr().out
    assert "observation/eyes/near: uint8 (3, 9, 8), scaled by 0.003922" in said
    assert "the last 3 numbers say which actions are legal" in said
    assert "pictures: laser train" in said


def test_a_film_shows_legal_actions_only(tmp_path):
    noted = tmp_path / "noted"
    options = {"environment.options": {"noted": str(noted)}}
    LASER(DRAWN, run_dir=tmp_path / "run", **SMALL, **options).learn(60).close()
    assert main(["enjoy", str(tmp_path / "run"), "--video", str(tmp_path / "film.gif"), "--trust-code"]) == 0
    assert (tmp_path / "film.gif").stat().st_size > 0
    assert not noted.exists()


def test_an_onnx_file_obeys_the_mask(tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    LASER(MASKED, run_dir=tmp_path / "run", **SMALL).learn(60).close()
    path = tmp_path / "policy.onnx"
    assert main(["export", str(tmp_path / "run"), "--onnx", str(path)]) == 0
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for only in range(6):
        seen = np.zeros((1, 12), np.float32)
        seen[0, 6 + only] = 1
        assert session.run(["action"], {"observation": seen})[0].tolist() == [2 + only]


def test_several_pictures_are_refused_as_onnx(tmp_path):
    agent = LASER(BOOK, **SMALL)
    with pytest.raises(ConfigError, match=r"has the parts .*eyes/near.* cannot be read in ONNX: use LASER\.save"):
        export_onnx(trained_of(agent.member, 0), tmp_path / "book.onnx")
    agent.close()


def test_a_dataset_has_the_parts_by_their_keys(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    LASER(BOOK, run_dir=tmp_path / "run", **SMALL).learn(150).close()
    name = "laser/book/mixed-v0"
    assert (
        main(["export", str(tmp_path / "run"), "--minari", name, "--out", str(tmp_path / "sets"), "--trust-code"]) == 0
    )
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    pages = 0
    for episode in minari.load_dataset(name):
        seen = episode.observations
        for t, place in enumerate(seen["rest"][:, 3:].astype(int)):
            wanted = expected_parts((int(place[0]) << 16) + int(place[1]), t, int(place[3]))
            near = wanted["eyes"]["near"].transpose(2, 0, 1)
            np.testing.assert_array_equal(seen["observation.eyes.near"][t], near)
            np.testing.assert_array_equal(seen["observation.depth"][t], wanted["depth"])
            last = t == len(seen["rest"]) - 1
            assert seen["action_mask"][t].tolist() == ([1, 1, 1] if last else [1, t % 2 == 0, 1])
            pages += 1
    assert pages > 50
