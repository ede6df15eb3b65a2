"""The help of commands that take settings, read from the source: to import the settings would take several times as long, torch seconds."""

import argparse
import ast
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]
# Short names of settings that their last names do not give.
SHORT = {"env": "environment.id", "video_every": "run.video_every_steps", "replay_from": "replay.start_from"}
_COMMON = (
    "env recipe config steps seed learning_rate entropy_cost discount slots unroll_steps batch_unrolls capacity_steps"
)
# The module and the class of a command's own flags, what may stand alone, and what `--help` shows; all, if that is empty.
COMMANDS = {
    "train": ("train", "TrainFlags", "[ENV]", f"{_COMMON} memory device out dashboard"),
    "sweep": (
        "train",
        "SweepFlags",
        "[ENV | FILE]",
        f"grid random draws share pbt search {_COMMON} processes out dashboard",
    ),
    "config": ("show", "Show", "show [ENV]", f"run_dir json {_COMMON} memory"),
    "resume": ("train", "Resume", "RUN_DIR", ""),
}
# Functions and methods, with decorators: what declares flags is a sixth of the source without them, and so is the time to parse it.
_FUNCTIONS = re.compile(r"^( *)(?:@.*\n(?:\1[ )].*\n)*\1)*def .*\n(?:\1[ )].*\n|\n)*", re.MULTILINE)
_WORDS = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH", "Any": "VALUE", "dict": "JSON"}
_END = (
    "Every setting is a flag by its full name, --optimiser.learning-rate, or by its last name where only one has it; one that is true or "
    "false takes no value: --popart, --no-popart. What is left out is as the recipe has it: 'laser config show --recipe NAME'. "
)


class Flag(NamedTuple):
    """One flag: a setting's full name, what its value looks like, its default, and what it does."""

    name: str
    metavar: str
    default: object
    text: str


class SourceText:
    """Classes and names of types in some modules of the package, as they are written."""

    def __init__(self, *modules: str) -> None:
        texts = (_FUNCTIONS.sub("", (PACKAGE / f"{one}.py").read_text(encoding="utf-8")) for one in modules)
        nodes = [node for text in texts for node in ast.parse(text).body]
        self.classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        self.types = {
            target.id: node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def flags(self, name: str, prefix: str = "") -> Iterator[Flag]:
        """The fields of a class, its bases' first, and of the classes that they are of."""
        for base in self.classes[name].bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                yield from self.flags(base.id, prefix)
        for node, after in pairwise([*self.classes[name].body, ast.Pass()]):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            kind, full = node.annotation, prefix + node.target.id
            if isinstance(kind, ast.Name) and kind.id in self.classes:
                yield from self.flags(kind.id, f"{full}.")
            elif getattr(getattr(kind, "value", None), "attr", "") != "Positional":
                default = None
                with contextlib.suppress(ValueError):  # made by a call: nothing, or nothing that a line could show
                    default = None if node.value is None else ast.literal_eval(node.value)
                yield Flag(full, self.metavar(kind), default, _text(after))

    def metavar(self, kind: ast.expr) -> str:
        """A word for a value of a type; empty for what is true or false."""
        match kind:
            case ast.Name(id=name) if name in self.types:
                return self.metavar(self.types[name])
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *notes])):
                given = [one.value for note in notes for one in getattr(note, "keywords", []) if one.arg == "metavar"]
                return str(ast.literal_eval(given[0])) if given else self.metavar(inner)
            case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
                return "{" + ast.unparse(choices).strip("()").replace("'", "").replace(", ", ",") + "}"
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[inner, *_])):
                return f"{self.metavar(inner)} ..."
            case ast.Subscript(value=inner) | ast.BinOp(left=inner):
                return self.metavar(inner)
        return _WORDS.get(getattr(kind, "id", ""), "")


def _text(node: ast.AST) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def help_text(command: str, *, everything: bool) -> str:
    """What `laser COMMAND --help` or, with everything, `--help-all` prints."""
    module, owner, alone, shown = COMMANDS[command]
    source = SourceText("config", "training/settings", f"cli/{module}")
    # The command's own flags, then all settings if it takes them, by the shortest name that there is.
    every, everything = [*source.flags(owner), *(source.flags("Config") if shown else ())], everything or not shown
    lasts = Counter(flag.name.rpartition(".")[2] for flag in every)
    unique = {last if lasts[last := flag.name.rpartition(".")[2]] == 1 else flag.name: flag for flag in every}
    short = {full: name for name, full in SHORT.items()}
    flags = {short.get(flag.name, name): flag for name, flag in unique.items()}
    more = (
        ""
        if everything
        else f"--help-all shows all {len(flags)} flags, with their defaults where no recipe has changed them."
    )
    parser = argparse.ArgumentParser(
        usage=f"laser {command} {alone} [FLAGS]",
        description=_text(source.classes[owner].body[0]),
        epilog=(_END if shown else "") + more,
        add_help=False,
    )
    groups = {"": parser.add_argument_group("flags")}
    for name in flags if everything else shown.split():
        flag, section = flags[name], flags[name].name.rpartition(".")[0] if everything else ""
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        given = everything and not (flag.default is None or flag.default is False or flag.default == ())
        text = (f"{flag.text} (default: {flag.default})" if given else flag.text).replace("%", "%%")
        value = {"metavar": flag.metavar} if flag.metavar else {"action": "store_true"}
        groups[section].add_argument(f"--{name.replace('_', '-')}", help=text, **value)
    return parser.format_help()
