"""`report.html` of a sweep: the best member, all members beside each other, who learned from whom, and what to type next."""

from pathlib import Path

from laser_rl.errors import ConfigError
from laser_rl.metrics.log import FILE
from laser_rl.metrics.page import read_json
from laser_rl.metrics.report import report
from laser_rl.metrics.stream import Stream
from laser_rl.metrics.sweep_standing import SWEEP, MemberStanding, best, settings_of, standing

__all__ = ["MemberStanding", "best", "standing", "sweep_report"]


def sweep_report(run_dir: str | Path) -> Path:
    """Write `report.html` into the run directory of a sweep, also while it goes on.

    >>> import tempfile
    >>> from laser_rl.metrics.log import MetricsLog
    >>> run_dir = tempfile.mkdtemp()
    >>> with MetricsLog(run_dir) as log:
    ...     log.write("train", 640, 4, {"member": 0, "return_mean": 20.0})
    >>> "Best member" in sweep_report(run_dir).read_text()
    True
    """
    run_dir = Path(run_dir)
    if not settings_of(read_json(run_dir / SWEEP)) and not any("member" in row for row in Stream(run_dir / FILE)):
        raise ConfigError(
            f"expected {run_dir / SWEEP} or {run_dir / FILE} with the numbers of a sweep, got neither; "
            "is this the directory of a sweep that has begun?"
        )
    return report(run_dir)
