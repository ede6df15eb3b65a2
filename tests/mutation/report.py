"""After `mutmut run`: count the mutants and write docs/mutants.md.

Fails if fewer than 95 % of the mutants of `laser_rl/ops` were killed, or if one that lives has no reason in survivors.toml.
Run: python -m tests.mutation.report
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
META = ROOT / "mutants" / "laser_rl" / "ops"
REASONS = Path(__file__).with_name("survivors.toml")
PAGE = ROOT / "docs" / "mutants.md"
# Exit codes of the tests as mutmut keeps them. All others are alive: survived (0), met by no test (33, 5), not run (None).
KILLED, TIMED_OUT = {1, 3}, {-24, 24, 36, 152, 255}
NEEDED = 0.95

HEAD = """# Mutants

`make mutants` changes every function of `laser_rl/ops` except decorated ones in small ways (`+` to `-`, `<` to `<=`, an argument dropped),
runs `tests/ops` against each change, and writes this page. It fails below 95 % killed, or if a survivor, a change that no test notices,
has no reason in `tests/mutation/survivors.toml`. A time-out counts as killed.

"""


class Survivor(NamedTuple):
    """One change that no test noticed."""

    name: str
    before: str
    after: str


def statuses() -> dict[str, Counter[int | None]]:
    """Exit codes of the tests for all mutants of each module."""
    counts = {}
    for path in sorted(META.glob("*.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        if codes:
            counts[path.name.removesuffix(".py.meta")] = Counter(codes.values())
    return counts


def survivors() -> list[Survivor]:
    """All of them, with the line before and after."""
    found = []
    for path in sorted(META.glob("*.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        for name in sorted(key for key, code in codes.items() if code not in KILLED | TIMED_OUT):
            shown = subprocess.run(
                [str(Path(sys.executable).with_name("mutmut")), "show", name],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            lines = [re.findall(rf"^\{sign}(?!\{sign})\s*(.*)$", shown, re.MULTILINE) for sign in "-+"]
            found.append(Survivor(readable(name), " ".join(lines[0]), " ".join(lines[1])))
    return found


def readable(name: str) -> str:
    """`module.function` from mutmut's mangled name."""
    module, function = name.removeprefix("laser_rl.ops.").split(".", 1)
    function = function.rpartition("__mutmut_")[0].replace("ǁ", ".").removeprefix("x.").removeprefix("x_")
    return f"{module}.{function}"


def reason_for(survivor: Survivor, rules: list[dict[str, str]]) -> str | None:
    """The first rule whose patterns fit the name, the line before and the line after."""
    for rule in rules:
        parts = zip(("name", "before", "after"), survivor, strict=True)
        if all(re.search(rule.get(key, ""), text) for key, text in parts):
            return rule["reason"]
    return None


def page(counts: dict[str, Counter[int | None]]) -> str:
    """docs/mutants.md."""
    rows = ["| module | mutants | killed | survived | timed out |", "|---|---|---|---|---|"]
    total: Counter[int | None] = Counter()
    for module, codes in counts.items():
        total += codes
        rows.append(row(module, codes))
    rows.append(row("**all**", total))
    return "\n".join([f"{HEAD}Killed: {killed(total):.1%}.\n", *rows]) + "\n"


def row(module: str, codes: Counter[int | None]) -> str:
    """One line of the table."""
    return f"| {module} | {codes.total()} | {count(codes, KILLED)} | {alive(codes)} | {count(codes, TIMED_OUT)} |"


def count(codes: Counter[int | None], wanted: set[int]) -> int:
    """How many mutants ended with one of these codes."""
    return sum(codes[code] for code in wanted)


def alive(codes: Counter[int | None]) -> int:
    """How many mutants no test noticed."""
    return codes.total() - count(codes, KILLED | TIMED_OUT)


def killed(codes: Counter[int | None]) -> float:
    """Share of mutants that some test noticed."""
    return 1 - alive(codes) / codes.total()


def main() -> int:
    """Write the page; 0 if all is well."""
    counts = statuses()
    rules = tomllib.loads(REASONS.read_text())["rule"]
    explained = [(survivor, reason_for(survivor, rules)) for survivor in survivors()]
    PAGE.write_text(page(counts))
    total = sum(counts.values(), Counter())
    unexplained = [survivor for survivor, reason in explained if reason is None]
    for survivor in unexplained:
        print(f"not explained: {survivor.name}\n  - {survivor.before}\n  + {survivor.after}")
    print(f"{total.total()} mutants, {killed(total):.1%} killed, {alive(total)} alive")
    print(f"written: {PAGE.relative_to(ROOT)}")
    return int(killed(total) < NEEDED or bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())
