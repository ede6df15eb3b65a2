"""Shapes are checked in every test; one thread; examples that repeat."""

import builtins
import os
import signal
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import config as jaxtyping_config
from jaxtyping import install_import_hook

pytest_plugins = ["tests.faults.figures"]
MUTATING = "MUTANT_UNDER_TEST" in os.environ
if not MUTATING:  # mutants have to be killed by what tests assert, and there are thousands of them
    # Before anything imports laser_rl: every annotated shape is compared with what arrives.
    install_import_hook(["laser_rl.ops", "examples.theory"], "beartype.beartype")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and every process started from here would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)
repeatable = settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", repeatable)
settings.register_profile("mutants", repeatable, max_examples=12)
settings.load_profile("mutants" if MUTATING else "repeatable")


@pytest.fixture(autouse=True)
def _no_last_result():
    """A doctest leaves its last result in `builtins._`; tyro, imported later, cannot hash all that it finds there."""
    yield
    vars(builtins).pop("_", None)


@pytest.fixture(autouse=True)
def _every_warning_is_new():
    """Environments warn once in a process; each test is a process of its own in that."""
    yield
    if (border := sys.modules.get("laser_rl.envs.border")) is not None:
        border.WARNED.clear()


@pytest.fixture
def as_in_production():
    """Without the hook: for tests of our own errors, and of what torch.compile sees."""
    jaxtyping_config.update("jaxtyping_disable", True)
    yield
    jaxtyping_config.update("jaxtyping_disable", False)
