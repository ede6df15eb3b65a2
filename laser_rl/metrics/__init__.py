"""What a run reports: numbers come in as rows and leave as `metrics.jsonl`, TensorBoard files, lines in the terminal and rows of trackers.

TensorBoard, the console and trackers are modules of their own to import: they are slow, and not every command needs them.
"""

from laser_rl.metrics.log import MetricsLog, read, read_from
from laser_rl.metrics.machine import memory_bytes
from laser_rl.metrics.rows import EpisodeWindow, Kind, Row, Sink, Value

__all__ = [
    "EpisodeWindow", "Kind", "MetricsLog", "Row", "Sink", "Value", "memory_bytes", "read", "read_from"
]  # fmt: skip
