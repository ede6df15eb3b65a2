"""What a run reports: numbers come in as rows and leave as `metrics.jsonl`, TensorBoard files, lines in the terminal and rows of trackers.

TensorBoard, the console and trackers are slow to import, and not every command needs them.
"""

from laser_rl.metrics.log import read

__all__ = ["read"]
