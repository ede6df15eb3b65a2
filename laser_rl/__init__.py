"""LASER: an off-policy actor-critic whose agents share one experience replay, under a trust region.

Importing this package is cheap; `laser_rl.ops` imports torch.

>>> import laser_rl
>>> laser_rl.__version__.count(".")
2
"""

from importlib.metadata import version

__version__ = version("laser-rl")
