"""The default configuration and every recipe, as JSON."""

import json
import os
from typing import Any
from unittest import mock

from laser_rl import recipes
from laser_rl.config import Config
from laser_rl.training.pbt import PbtConfig
from laser_rl.training.settings import SweepConfig

ELSEWHERE = "laser/Catch"  # some recipes have other numbers for tasks that are not their own


def all_settings() -> dict[str, Any]:
    """By name: every value of every setting, on a machine of four cores."""
    with mock.patch.object(os, "sched_getaffinity", return_value=set(range(4))):
        return _all_settings()


def _all_settings() -> dict[str, Any]:
    one_member = SweepConfig(members=({},))
    least_pbt = PbtConfig(burn_in_steps=0, every_episodes=1, margin=0.0)
    found = {"default": Config(), "default of sweeps": one_member, "default of PBT": least_pbt}
    for name in recipes.RECIPES:
        found[name] = recipes.by_name(name)
        found[f"{name} for {ELSEWHERE}"] = recipes.by_name(name, ELSEWHERE)
    found["laser-multitask for suite:dmlab-30"] = recipes.by_name("laser-multitask", "suite:dmlab-30")
    for name in recipes.SWEEPS:
        found[name] = recipes.SWEEPS[name]()
        found[f"{name} for {ELSEWHERE}"] = recipes.SWEEPS[name](ELSEWHERE)
    found["PBT of small sweeps"] = recipes.small_pbt(20_000)
    return json.loads(json.dumps({name: value.model_dump(mode="json") for name, value in found.items()}))
