"""`make weight`: lines by package beside their budgets, class names defined twice, words of the documentation, imports of a run, tests."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "laser_rl"
# Lines that a package may have. What is not listed counts as the first row: what a user imports.
BUDGETS = {
    "api, config, recipes": 1_500, "cli": 1_600, "ops": 2_000, "envs": 4_000, "networks": 1_000, "replay": 2_600, "agent": 1_900,
    "cuda": 1_700, "training": 4_200, "checkpoint": 1_500, "metrics": 1_400, "view": 2_200, "cluster": 3_000, "research": 2_800,
    "tools": 1_600,
}  # fmt: skip
HOMES = {"evaluation": "research"}  # packages that have no budget of their own
LINES, FILES, README_WORDS, DOCS_WORDS = 30_000, 220, 1_200, 45_000
# A test is internal if it uses a name of the package that is neither in these modules nor in docs/reference.
PUBLIC = ("laser_rl.cli", "laser_rl.config", "laser_rl.errors", "laser_rl.ops", "laser_rl.recipes", "laser_rl.types")
RUN = """
import sys
from laser_rl import LASER
LASER("CartPole-v1", device="cpu").learn(200).close()
print(*(name for name in sys.modules if name.startswith("laser_rl")))
"""


def budget_of(path: Path) -> str:
    """The row of the table that a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    home = HOMES.get(first, first)
    return home if home in BUDGETS else "api, config, recipes"


def imported() -> list[str]:
    """Modules of ours that learning CartPole on a CPU imports."""
    return subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True).stdout.split()


def tests() -> tuple[int, int]:
    """How many test functions there are, and how many of them know internal names."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    public = (*PUBLIC, *re.findall(r"^::: (\S+)", pages, re.MULTILINE))

    def internal(name: str) -> bool:
        known = name.count(".") == 1 or any(name == one or name.startswith(f"{one}.") for one in public)
        return re.match(r"laser_rl\.\w", name) is not None and not known

    functions = insiders = 0
    for file in (ROOT / "tests").rglob("*.py"):
        tree = list(ast.walk(ast.parse(file.read_text())))
        imports = [node for node in tree if isinstance(node, ast.ImportFrom)]
        named = {
            one.asname or one.name for node in imports for one in node.names if internal(f"{node.module}.{one.name}")
        }
        for function in (node for node in tree if isinstance(node, ast.FunctionDef) and node.name.startswith("test")):
            inside = list(ast.walk(function))
            names = {node.id for node in inside if isinstance(node, ast.Name)}
            strings = [str(node.value) for node in inside if isinstance(node, ast.Constant)]
            functions += 1
            insiders += bool(names & named) or any(internal(text) for text in strings)
    return functions, insiders


def main() -> None:
    """Print all of it."""
    files = sorted(PACKAGE.rglob("*.py"))
    lines, rooms, classes = Counter[str](), Counter[str](), Counter[str]()
    for file in files:
        text = file.read_text()
        lines[budget_of(file)] += text.count("\n")
        rooms[budget_of(file)] += 1
        classes.update(re.findall(r"^class (\w+)", text, re.MULTILINE))
    print(f"{'package':<22}{'files':>7}{'lines':>9}{'budget':>9}")
    for name, budget in BUDGETS.items():
        print(f"{name:<22}{rooms[name]:>7}{lines[name]:>9,}{budget:>9,}{'  over' if lines[name] > budget else ''}")
    print(f"{'all':<22}{len(files):>7}{lines.total():>9,}{LINES:>9,}  (files: {FILES})")
    twice = sorted(name for name, count in classes.items() if count > 1)
    print(f"class names defined more than once: {len(twice)}{': ' if twice else ''}{', '.join(twice)}")
    readme = len((ROOT / "README.md").read_text().split())
    docs = sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md"))
    print(f"words: README {readme:,} of {README_WORDS:,}, docs {docs:,} of {DOCS_WORDS:,}")
    print(f"modules of ours that a run on a CPU imports: {len(imported())} (fewer than 120 is the aim)")
    functions, insiders = tests()
    print(
        f"test functions: {functions:,}, of which {insiders / functions:.0%} know internal names (at most half is the aim)"
    )


if __name__ == "__main__":
    main()
