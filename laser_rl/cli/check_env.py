"""`laser check-env`: an environment is examined in a process of its own; every finding names what to do."""

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from laser_rl.errors import ConfigError
from laser_rl.tools.check_process import Order, examine
from laser_rl.tools.check_text import agent_facts, as_json, as_text

DEFECTS = 1  # exit status


@dataclass(frozen=True)
class CheckEnv:
    """Examine an environment: what it declares, what it returns, seeds, ends, leaks, speed. Exit status 1 if there is a defect."""

    id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """An id that Gymnasium knows, one of ours, `module:Name-v0`, or `module:callable`."""
    steps: int = 2_000
    """Random ones, at most; slow environments are played for fewer."""
    slots: int = 4
    """Of environments that step many at once; of a mixture at least so many, the same for each task."""
    seconds: float = 4.0
    """For each stage of the examination, about."""
    seed: int = 0
    """Of episodes and actions."""
    options: str = "{}"
    """Keyword arguments of the environment as JSON, e.g. '{"size": 5}'."""
    step_limit: float = 20.0
    """Seconds that one step may take before it counts as hanging."""
    reset_limit: float = 60.0
    """The same for one reset."""
    constructor_limit: float = 120.0
    """The same for the import and the constructor."""
    json: bool = False
    """Everything as JSON."""


def check_command(arguments: list[str]) -> int:
    """`laser check-env`."""
    from laser_rl.recipes.single import shared  # noqa: PLC0415 - imports the settings, which the help text does not need

    asked = tyro.cli(CheckEnv, prog="laser check-env", args=arguments)
    if min(asked.steps, asked.slots) < 1 or asked.seconds <= 0:
        raise ConfigError("expected --steps, --slots and --seconds above 0; leave them out for the usual ones")
    limits = (asked.step_limit, asked.reset_limit, asked.constructor_limit)
    slots, options = shared(asked.id, asked.slots), _options(asked.options)
    order = Order(asked.id, options, asked.steps, slots, asked.seconds, asked.seed, *limits)
    loud = sys.stderr.isatty() and not asked.json
    found = examine(order, lambda stage: print(f"laser: {asked.id}: {stage} …", file=sys.stderr) if loud else None)
    agent = None if found.spec is None else agent_facts(found.spec, asked.id)
    if asked.json:
        print(json.dumps(as_json(found, agent), indent=2))
    else:
        print("\n".join(as_text(found, agent, coloured=sys.stdout.isatty())))
    return DEFECTS if found.of("defect") else 0


def _options(text: str) -> dict[str, Any]:
    example = "e.g. '{\"size\": 5}'"
    try:
        options = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"expected --options to be JSON, got {text!r} ({error}); {example}") from None
    if not isinstance(options, dict):
        raise ConfigError(f"expected --options to be a JSON object, got {text!r}; {example}")
    return options
