"""Shapes are checked in every test; one thread; examples that repeat."""

import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

# Before anything imports laser_rl: every annotated shape is compared with what arrives.
install_import_hook("laser_rl.ops", "beartype.beartype")

torch.set_num_threads(1)
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
