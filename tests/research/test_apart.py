"""Training is apart from research and tools: a run on a CPU imports neither, nor scipy.stats, which takes a second."""

import subprocess
import sys

RUN = """
import sys
from laser_rl.cli import main
options = ["--env", "laser/Catch", "--steps", "200", "--device", "cpu", "--run.evaluate-episodes", "2", "--plain"]
assert main(["train", *options, "--out", sys.argv[1]]) == 0
unwanted = ("laser_rl.research", "laser_rl.tools", "scipy.stats")
print("imported:", *(name for name in sys.modules if name.startswith(unwanted)))
"""


def test_a_run_imports_neither_research_nor_tools(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run")], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "imported:"
    assert (tmp_path / "run" / "checkpoints").is_dir()
