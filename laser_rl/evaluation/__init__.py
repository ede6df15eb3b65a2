"""How good an agent is: playing episodes, their statistics, and videos."""

from laser_rl.evaluation.rollout import rollout
from laser_rl.evaluation.statistics import Aggregate, EvalResult, stratified_iqm, summarise, summarise_episodes
from laser_rl.evaluation.video import record

__all__ = ["Aggregate", "EvalResult", "record", "rollout", "stratified_iqm", "summarise", "summarise_episodes"]
