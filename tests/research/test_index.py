"""One page over several experiments says what each of them found, and hides nothing that failed."""

import pytest

from laser_rl.research.report import CURVES, report, table, write_index
from tests.research.test_verdicts import ABOUT, curve_lines


@pytest.fixture
def folder(tmp_path):
    own = tmp_path / "sharing"
    own.mkdir()
    ABOUT.model_copy(update={"smoke": True}).write(own)
    lines = list(curve_lines())
    (own / CURVES).write_bytes(table(tuple(lines[0]), lines))
    report(own)
    (tmp_path / "ratio").mkdir()  # has not ended yet
    (tmp_path / "parts").mkdir()
    return tmp_path


def test_every_claim_of_every_experiment_that_ended(folder):
    page = write_index(folder).read_text()
    assert "ratio" not in page
    assert "- [sharing](sharing/README.md): Does a sweep" in page
    assert "--smoke" in page
    assert "| sharing | replay beats none | Fig. 1 | **reproduced** |" in page
    assert "None of these experiments has any." in page


def test_what_was_not_reproduced_is_named(folder):
    path = folder / "sharing" / "verdicts.csv"
    path.write_text(path.read_text().replace(",reproduced\n", ",not reproduced\n"))
    page = write_index(folder).read_text()
    refuted = page.partition("## Not reproduced")[2]
    [line] = [line for line in refuted.splitlines() if "replay beats none (Fig. 1)" in line and "shared" not in line]
    assert line.startswith("- sharing: replay beats none (Fig. 1): ")
    assert {"catch", "cartpole"} <= set(line.partition("): ")[2].split(", "))
    assert "all tasks +" in line
    assert "one each" not in refuted
