"""Tutorial and guides are true: every command and every line of Python on them runs."""

import os
import re
import sys
from pathlib import Path

import pytest

from laser_rl.agent import functions
from tests.docs.blocks import blocks, commands, play_as_user, play_here, tenth

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
QUICK = [DOCS / "tutorial.md", *sorted((DOCS / "guides").glob("*.md"))]
PAGES = [*QUICK, DOCS / "faq.md"]


@pytest.mark.parametrize("page", QUICK, ids=lambda page: page.stem)
def test_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    play_here(page)
    functions._imported.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_as_a_user_would_run_it(page, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    play_as_user(page, tmp_path, {**os.environ, "PATH": path})


def test_pages_have_code():
    for page in PAGES:
        found = blocks(page)
        assert page.stem == "atari" or any(block.language in {"bash", "python"} for block in found), page
        # A fence that the pattern does not understand would be skipped in silence.
        assert len(found) == len(re.findall(r"^```\w+", page.read_text(), re.MULTILINE)), page


def test_the_tutorial_leads_to_an_own_environment_with_dashboard():
    lines = [line for block in blocks(DOCS / "tutorial.md") if block.language == "bash" for line in commands(block)]
    assert any("--env maze:Maze" in line and "--dashboard" in line for line in lines)
    assert {line.split()[1] for line in lines} >= {
        "check-env",
        "train",
        "resume",
        "evaluate",
        "sweep",
        "dashboard",
        "report",
    }


def test_fewer_steps():
    assert tenth("laser train --steps 8k --seed 1") == "laser train --steps 800 --seed 1"
