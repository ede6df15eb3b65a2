"""The notebook runs from top to bottom and says something true."""

import json
import re
from pathlib import Path

from tests.docs.notebook import cells, play

PATH = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    printed = play(PATH)
    assert "step 3,000 of 3,000 (100 %)" in printed[0]  # lines: there is neither a terminal nor a kernel
    assert "EvalResult(mean=" in printed[0]
    assert re.search(r"step 8,\d+: mean return of the last 100 episodes \d+\.\d", printed[1])
    [coins] = re.findall(r"([\d.]+) of 10 coins", printed[2])
    assert float(coins) > 7  # by chance 5 ± 0.35
    assert len(printed[4].splitlines()) == 3
    shares = re.findall(r"^member (\d) trusted +(\d+)% of what member (\d) wrote$", printed[5], re.MULTILINE)
    assert len({(learner, source) for learner, _, source in shares}) == 9
    assert all(int(share) > 90 for learner, share, source in shares if learner == source)
    assert not list(tmp_path.iterdir())  # it cleans up after itself


def test_stored_outputs_are_those_of_its_cells():
    outputs = []
    for number, cell in enumerate(cells(PATH)):
        assert cell["execution_count"] == number + 1
        assert {output["output_type"] for output in cell["outputs"]} <= {"stream", "display_data"}
        outputs += cell["outputs"]
    shown = [output["data"] for output in outputs if "data" in output]
    [table] = [data for data in shown if "3,000 of 3,000 (100 %)" in "".join(data.get("text/plain", []))]
    assert "".join(table["text/html"]).startswith("<pre")  # the table, in its last state
    assert sum("image/png" in data for data in shown) == 1  # the plot
    assert len(PATH.read_bytes()) < 30_000
    assert json.loads(PATH.read_bytes())["nbformat"] == 4
