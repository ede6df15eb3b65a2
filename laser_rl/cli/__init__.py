"""The command `laser`.

A command is imported only when it is called, so that `laser --help` does not wait for torch.
"""

import importlib
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import laser_rl
from laser_rl.errors import ConfigError, UserError, is_full, suggestion, written_out

HELP = frozenset({"-h", "--help", "--help-all"})
_MOST_SHOWN = 200  # letters of a path
TRUST_HELP = (
    "--trust-code: import and call the code that a file names (module:callable); of every command, never the default"
)

# The module, what it holds (a class of flags that can be called, or a function of the arguments), and what the command does.
COMMANDS = {
    "train": ("cli.train", "train_command", "train one agent; all its files go to a run directory"),
    "sweep": ("cli.train", "sweep_command", "train several agents that differ in a few settings and share one replay"),
    "status": ("cli.status", "status_command", "how runs and sweeps stand, also while they go on"),
    "resume": ("cli.train", "resume_command", "go on with a run or sweep that was stopped, killed or finished"),
    "verify": ("tools.verify", "Verify", "check every file of runs and sweeps: checkpoints, replay, metrics, settings"),
    "evaluate": ("cli.play", "Evaluate", "play with the newest checkpoint: mean, IQM, 95 % interval"),
    "enjoy": ("cli.play", "Enjoy", "make a video of the newest checkpoint"),
    "export": ("cli.export", "Export", "the policy as ONNX, whole episodes of the replay as a Minari dataset"),
    "push": ("cli.export", "Push", "upload an agent with a model card to the Hugging Face Hub; --dry-run looks"),
    "config": ("cli.flags", "config_command", "show a configuration: of recipe, file and flags, or of a run"),
    "check-env": ("tools.check_process", "CheckEnv", "examine an environment: values, seeds, ends, speed; with fixes"),
    "doctor": ("tools.doctor", "Doctor", "is this machine fine? versions, cores, memory, disk, GPU"),
    "report": ("view.report", "Report", "write a report of runs and sweeps, alone or side by side"),
    "dashboard": ("view.command", "Dashboard", "show runs and sweeps in a browser, also while they go on"),
    "experiment": ("research.run_experiments", "experiment_command", "the paper's figures and tables, with verdicts"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 0, an error's own (2: the input was refused), or 128 + the number of a signal."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - it is None if it was closed before we began
    before = _output()
    try:
        try:
            return _main(arguments)
        finally:
            print(end="", flush=True)  # what is still buffered fails here, and not while Python ends
    except (BrokenPipeError, SystemExit) as error:
        # Rich exits, after it has put /dev/null in the place of a closed pipe.
        if not (_nobody_reads() if isinstance(error, BrokenPipeError) else _output() != before):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a program that SIGPIPE ends


def _output() -> tuple[int, int] | None:
    """Which file or pipe standard output is; None if it is no file, as in tests."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _nobody_reads() -> bool:
    """Whether the reader of standard output has gone: a pipe to a worker process may break, too."""
    if _output() is None:
        return False
    output = select.poll()
    output.register(sys.stdout, select.POLLERR)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _main(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in {"-h", "--help"}:
        width = max(map(len, COMMANDS))
        lines = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, _, summary) in COMMANDS.items())
        end = f"laser COMMAND --help explains one; laser --version\n{TRUST_HELP}"
        print(f"usage: laser COMMAND [OPTIONS]\n\n{lines}\n\n{end}")
        return 0
    if arguments[0] == "--version":
        print(f"laser {laser_rl.__version__}")
        return 0
    name, *rest = arguments
    for word in arguments:
        if word != word.encode(errors="replace").decode():  # neither a terminal nor JSON could show such a path
            return _refuse(f"{os.fsencode(word)!r} is not UTF-8, expected text; rename the file or directory")
    if name not in COMMANDS:
        hint = suggestion(name, COMMANDS, "'laser --help' lists the commands")
        return _refuse(f"there is no command {name!r}; {hint}")
    asked = HELP & {*rest}
    if asked and name in {"train", "sweep", "resume", "config"}:
        from laser_rl.cli.options import help_text  # noqa: PLC0415 - see the module's docstring

        print(f"{help_text(name, everything='--help-all' in asked)}\n{TRUST_HELP}")
        return 0
    if name != "status":  # it logs nothing
        _start_logging()
    return _run(name, ["--help"] if asked else rest)


def _run(name: str, arguments: list[str]) -> int:
    from laser_rl.trust import FLAG, Trust  # noqa: PLC0415

    os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # a mistake's message is for the user, not about pydantic
    if name in {"train", "sweep", "resume"} and sys.stderr.isatty():
        print("laser: loading torch …", file=sys.stderr)  # a sign of life: it takes a second or two
    try:
        module, called, _ = COMMANDS[name]
        found = getattr(importlib.import_module(f"laser_rl.{module}"), called)
        with Trust(code=FLAG in arguments).applied():
            words = expand_numbers([word for word in arguments if word != FLAG])
            return int(asked(found, name, words)() if isinstance(found, type) else found(words))
    except SystemExit:
        if HELP & {*arguments}:
            print(TRUST_HELP)
        raise
    except (UserError, TimeoutError) as error:  # a TimeoutError names the side that was waited for
        return _refuse(str(error), getattr(error, "exit_status", 4))
    except BrokenPipeError:  # see `main`
        raise
    except OSError as error:
        if is_full(error):
            said = f"{error.strerror}: {error.filename or 'a file'} could not be written; free some space there"
            return _refuse(said, 5)  # as of `training.saving.NoSpace`
        if error.filename is None:  # no path of the user's: a fault of ours, or of the machine
            raise
        path = os.fsencode(error.filename).decode(errors="backslashreplace") or "a path"
        shown = path if len(path) <= _MOST_SHOWN else f"{path[:_MOST_SHOWN]}…"
        todo = "expected a path that can be used; check the name and its permissions, or choose another"
        return _refuse(f"{shown}: {error.strerror}, {todo}")
    except KeyboardInterrupt:
        return _refuse("interrupted", 130)


def _start_logging() -> None:
    import logging  # noqa: PLC0415 - see the module's docstring

    logging.basicConfig(format="laser: %(message)s", level=logging.WARNING)
    logging.getLogger("laser_rl").setLevel(logging.INFO)


def asked(flags: type, name: str, arguments: list[str]) -> Any:
    """The flags of a command from its arguments; explains or refuses them, as tyro does."""
    import tyro  # noqa: PLC0415 - see the module's docstring

    found: Any = tyro.cli(flags, prog=f"laser {name}", args=arguments)
    if getattr(found, "run_dirs", None) == ():
        raise ConfigError(f"{name} what? name one or more run directories: laser {name} runs/*")
    return found


def expand_numbers(arguments: Sequence[str]) -> list[str]:
    """200k and 1.5M as whole numbers, after flags that count steps or frames."""
    expanded, counting = [], False
    for word in arguments:
        flag, equals, value = word.partition("=")
        counts = flag.startswith("--") and flag.endswith(("steps", "frames", "video-every"))
        if counts and equals:
            expanded.append(f"{flag}={written_out(value)}")
        else:
            expanded.append(written_out(word) if counting else word)
        counting = counts and not equals
    return expanded


def _refuse(message: str, status: int = 2) -> int:
    print(f"laser: {message}", file=sys.stderr)
    return status
