"""Training is apart from research, tools, views and clusters: a run on a CPU imports none of them, nor scipy.stats, which is slow."""

import subprocess
import sys

RUN = """
import sys
from laser_rl.cli import main
options = ["--env", "laser/Catch", "--steps", "200", "--device", "cpu", "--run.evaluate-episodes", "2", "--plain"]
assert main(["train", *options, "--out", sys.argv[1]]) == 0
unwanted = ("laser_rl.research", "laser_rl.tools", "laser_rl.cluster", "laser_rl.cuda", "scipy.stats")
print("imported:", *(name for name in sys.modules if name.startswith(unwanted)))
"""


def test_a_run_imports_neither_research_nor_tools(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run")], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "imported:"
    assert (tmp_path / "run" / "checkpoints").is_dir()


LEARN = """
import sys
from laser_rl import LASER
LASER("laser/Catch", device="cpu", run_dir=sys.argv[1]).learn(200).close()
unwanted = ("laser_rl.research", "laser_rl.tools", "laser_rl.view", "laser_rl.cluster", "laser_rl.cli", "ray")
print("imported:", *(name for name in sys.modules if name.startswith(unwanted)))
"""


def test_learning_imports_no_view_and_no_cluster(tmp_path):
    command = [sys.executable, "-c", LEARN, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "imported:"
