"""`make soak`, for half a minute: what it does and what it looks at in the end have to go on working."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_short_soak_holds():
    command = [sys.executable, "-m", "tests.faults.soak", "--minutes", "0.5"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all that has to hold holds" in ended.stdout
    assert "every row checked" in ended.stdout
