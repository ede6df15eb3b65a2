"""What only a GPU needs costs a run on a CPU nothing."""

import subprocess
import sys

RUN = """
import sys
from laser_rl import LASER
LASER("CartPole-v1", device="cpu").learn(200).close()
print([name for name in sys.modules if name.startswith("laser_rl.cuda") or name == "triton"])
"""


def test_a_run_on_a_cpu_never_imports_what_only_a_gpu_needs():
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
