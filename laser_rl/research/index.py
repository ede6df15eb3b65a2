"""One page over a folder of experiments: every claim with what became of it, and what was not reproduced."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from laser_rl.disk import write_bytes
from laser_rl.research.experiments import EXPERIMENTS
from laser_rl.research.report import ABOUT, PAGE, VERDICTS, read_about
from laser_rl.research.runner import read_table
from laser_rl.research.verdicts import ALL

REFUTED = {"not reproduced", "no"}


class ClaimLine(NamedTuple):
    """A claim about one task or about all, as `verdicts.csv` has it."""

    experiment: str
    claim: str
    source: str
    task: str
    difference: str
    verdict: str

    @property
    def ours(self) -> bool:
        """Whether the paper does not make it."""
        return not self.source


def lines_in(folder: Path) -> list[ClaimLine]:
    """Of all experiments whose folders are here, in the order of the paper."""
    found = []
    for name in EXPERIMENTS:
        path = folder / name / VERDICTS
        if path.is_file() and (folder / name / ABOUT).is_file():
            found += [_line(name, row) for row in read_table(path)]
    return found


def _line(experiment: str, row: dict[str, str]) -> ClaimLine:
    numbers = [row[name] for name in ("difference", "low", "high")]
    said = "" if not all(numbers) else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*map(float, numbers))
    return ClaimLine(experiment, row["claim"], row["source"], row["task"], said, row["verdict"])


def write_index(folder: Path) -> Path:
    """`README.md` of a folder of experiments."""
    lines = lines_in(folder)
    write_bytes(folder / PAGE, ("\n".join(_page(folder, lines)) + "\n").encode())
    return folder / PAGE


def _page(folder: Path, lines: Sequence[ClaimLine]) -> list[str]:
    overall = [line for line in lines if line.task == ALL]
    names = list(dict.fromkeys(line.experiment for line in lines))
    return [
        "# Experiments: what became of each claim",
        "",
        *(f"- [{name}]({name}/{PAGE}): {EXPERIMENTS[name].question} {_made(folder / name)}" for name in names),
        "",
        "Differences are in scores (0 random play, 1 the best) over all tasks, with 95 % intervals over seeds. Each verdict stands",
        "for itself: of twenty claims about equal agents one is expected to be decided.",
        "",
        "## The paper's claims",
        "",
        *_table([line for line in overall if not line.ours]),
        "",
        "## Questions that it leaves open",
        "",
        *_table([line for line in overall if line.ours]),
        "",
        "## Not reproduced",
        "",
        *_refuted([line for line in lines if line.verdict in REFUTED and not line.ours]),
    ]


def _made(folder: Path) -> str:
    about = read_about(folder)
    smoke = " Made with `--smoke`: nothing was learned." if about.smoke else ""
    return f"Suite `{about.suite}`, {len(about.tasks)} tasks, {len(about.seeds)} seeds.{smoke}"


def _table(overall: Sequence[ClaimLine]) -> list[str]:
    if not overall:
        return ["None of these experiments has any."]
    table = ["| experiment | claim | of | all tasks | difference |", "|---|---|---|---|---|"]
    for line in overall:
        cells = (line.experiment, line.claim, line.source or "–", f"**{line.verdict}**", line.difference)
        table.append(f"| {' | '.join(cells)} |")
    return table


def _refuted(lines: Sequence[ClaimLine]) -> list[str]:
    """A line for each claim that failed somewhere, with the tasks that decided against it."""
    if not lines:
        return ["Nothing."]
    claims = dict.fromkeys((line.experiment, line.claim, line.source) for line in lines)
    return [f"- {name}: {text} ({source}): {_places(lines, name, text)}" for name, text, source in claims]


def _places(lines: Sequence[ClaimLine], experiment: str, claim: str) -> str:
    own = [line for line in lines if (line.experiment, line.claim) == (experiment, claim)]
    return ", ".join(f"{line.task} {line.difference}" if line.task == ALL else line.task for line in own)
