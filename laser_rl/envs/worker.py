"""What a worker process runs: its share of the slots, on command, in memory that it shares with the pool.

It is started by `process.py` with a connection and three anonymous memory files. A command is one short message, and so is its answer; the
rows themselves are written into the shared block *before* the answer is sent, so a row without an answer is never read.
"""

import contextlib
import ctypes
import dataclasses
import json
import mmap
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.block import RowBlock, block_fields, carve
from laser_rl.envs.records import (
    ActionSpec,
    BoxActions,
    DiscreteActions,
    EnvironmentSpec,
    MultiDiscreteActions,
    ObservationSpec,
)
from laser_rl.envs.slot import COUNTERS, EXITS, IDLE, Slot, exit_of
from laser_rl.envs.spaces import action_layout
from laser_rl.errors import EnvironmentEnded, EnvironmentFailed, EnvironmentRefused

HEADER = struct.Struct("!I")
MOST_BYTES = 1 << 16


class Channel:
    """One end of a two-way pipe. Messages are far shorter than the pipe's buffer, so that sending never blocks."""

    def __init__(self, handle: int) -> None:
        self._handle, self._rest = handle, b""

    def send(self, message: bytes) -> None:
        """Raises BrokenPipeError or ConnectionResetError if the other end is gone."""
        os.write(self._handle, HEADER.pack(len(message)) + message)

    def receive(self) -> list[bytes]:
        """What is there, in order, perhaps nothing whole yet; waits only if not a single byte is. Raises EOFError at the end."""
        data = os.read(self._handle, MOST_BYTES)
        if not data:
            raise EOFError
        data, messages, start = self._rest + data, [], 0
        while len(data) - start >= HEADER.size:
            end = start + HEADER.size + HEADER.unpack_from(data, start)[0]
            if end > len(data):
                break
            messages.append(data[start + HEADER.size : end])
            start = end
        self._rest = data[start:]
        return messages


Array = NDArray[np.generic]
Fields = dict[str, tuple[tuple[int, ...], str]]
MAP, STEP, REBUILD, QUIT = b"m", b"s", b"r", b"q"
DONE, SPEC, LOG, WARN, ERROR = b"k", b"c", b"l", b"w", b"e"
PHASE, AT_SLOT, ENTRIES = range(3)
LONGEST_TEXT = 8_000  # characters; an answer has to fit into the connection's buffer, so that sending it never blocks
PR_SET_PDEATHSIG = 1
ERRORS: Mapping[str, type[EnvironmentRefused | EnvironmentFailed]] = {
    "refused": EnvironmentRefused,
    "failed": EnvironmentFailed,
    "ended": EnvironmentEnded,
}
KINDS: Mapping[str, Callable[..., ActionSpec]] = {
    kind.__name__: kind for kind in (DiscreteActions, MultiDiscreteActions, BoxActions)
}


def control_fields(workers: int, slots: int) -> Fields:
    """What each worker is doing (a cache line each), and the faults of each slot."""
    return {"activity": ((workers, 8), "int64"), "counts": ((slots, len(COUNTERS)), "int64")}


def shared_fields(spec: EnvironmentSpec, slots: int) -> Fields:
    """The rows, and the actions that ask for them."""
    shape, dtype = action_layout(spec.action)
    asked = {"action": ((slots, *shape), dtype), "asked": ((slots,), "bool")}
    return {**block_fields(spec.observation, slots), **asked}


def split_shared(arrays: Mapping[str, Array]) -> tuple[RowBlock, Array, Array]:
    """The rows, the actions, and which slots are asked to act."""
    return RowBlock(*(arrays[name] for name in RowBlock._fields)), arrays["action"], arrays["asked"]  # type: ignore[arg-type]


def write_spec(spec: EnvironmentSpec) -> bytes:
    """A spec as a message."""
    return json.dumps({**dataclasses.asdict(spec), "kind": type(spec.action).__name__}).encode()


def read_spec(message: bytes) -> EnvironmentSpec:
    """The spec in a message."""
    parts = json.loads(message)
    observation = parts["observation"]
    observation["shape"] = tuple(observation["shape"])
    action = {key: tuple(value) if isinstance(value, list) else value for key, value in parts["action"].items()}
    chosen = KINDS[parts["kind"]](**action)
    return EnvironmentSpec(
        parts["name"], ObservationSpec(**observation), chosen, tuple(parts["tasks"]), parts.get("spaces")
    )


def die_with(parent: int) -> None:
    """The kernel kills this process when the thread that started it ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was too late to ask
        os._exit(1)


class Worker:
    """Some slots, and the loop that obeys the pool."""

    def __init__(self, connection: Connection, memory: Sequence[int], start: Mapping[str, Any]) -> None:
        self._channel, self._start = Channel(connection.fileno()), start
        self._control, self._rows, self._scratch = memory
        mapped = mmap.mmap(self._control, 0)
        control = carve(memoryview(mapped), control_fields(start["workers"], start["slots"]))
        self._activity: NDArray[Any] = control["activity"][start["index"]]
        self._counts: NDArray[Any] = control["counts"]
        if start["main"]:
            spawn.prepare(start["main"])
        make = connection.recv()
        self._members = {
            slot: Slot(
                make,
                name=start["name"],
                slot=slot,
                seed=start["seed"],
                counts=self._counts[slot],
                on_bad_value=start["on_bad_value"],
                report=self._report,
                warn=self._warn,
                watch=self._watch,
                episode=episode,
                broken=broken,
            )
            for slot, episode, broken in start["members"]
        }

    def run(self) -> None:
        """Say what the environment looks like, then obey until told to quit or alone."""
        self._channel.send(SPEC + write_spec(next(iter(self._members.values())).spec))
        while True:
            for command in self._channel.receive():  # waits for the pool; if that dies, the kernel ends this process
                if command == QUIT:
                    for member in self._members.values():
                        member.close()
                    return
                self._obey(command)

    def _obey(self, command: bytes) -> None:
        kind = command[:1]
        if kind == STEP:
            self._step()
        elif kind == MAP:
            self._map(next(iter(self._members.values())).spec)
        elif kind == REBUILD:
            self._rebuild(json.loads(command[1:]))

    def _map(self, spec: EnvironmentSpec) -> None:
        mapped = memoryview(mmap.mmap(self._rows, 0))
        block, action, asked = split_shared(carve(mapped, shared_fields(spec, self._start["slots"])))
        for slot, member in self._members.items():
            member.bind(block, slot)
        self._action, self._asked = action, asked

    def _step(self) -> None:
        for slot, member in self._members.items():
            if self._asked[slot]:
                member.advance(self._action[slot])
        self._activity[PHASE] = IDLE
        self._channel.send(DONE)

    def _rebuild(self, episodes: Sequence[tuple[int, int, int, int, int]]) -> None:
        shape, dtype = self._action.shape[1:], self._action.dtype
        for slot, episode, digest, offset, length in episodes:
            actions = np.zeros((length, *shape), dtype)
            if length:
                with mmap.mmap(self._scratch, 0) as mapped:
                    actions = np.frombuffer(mapped[offset : offset + actions.nbytes], dtype).reshape(actions.shape)
            self._members[slot].rebuild(episode, actions, digest)
        self._channel.send(DONE)

    def _watch(self, phase: int, slot: int) -> None:
        activity = self._activity
        activity[PHASE] = phase
        activity[AT_SLOT] = slot
        activity[ENTRIES] += 1

    def _report(self, text: str) -> None:
        self._channel.send(LOG + text[-LONGEST_TEXT:].encode())

    def _warn(self, key: str, sentence: str) -> None:
        """The pool says it once for all its workers."""
        self._channel.send(WARN + json.dumps([key, sentence[:LONGEST_TEXT]]).encode())


def error_message(error: BaseException) -> bytes:
    """An error as a message: its kind and its text."""
    kind = next((kind for kind, known in ERRORS.items() if type(error) is known), "failed")
    known = isinstance(error, EnvironmentRefused | EnvironmentFailed)
    text = (
        str(error)
        if known
        else f"a worker process of the environment failed with the error below\n\n{traceback.format_exc()}"
    )
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT // 4]}\n…\n{text[-LONGEST_TEXT // 2 :]}"
    return ERROR + json.dumps({"kind": kind, "text": text}).encode()


def main() -> None:
    """Entry: `python -c … <connection> <control> <rows> <scratch> <parent's process id>`."""
    handle, *memory, parent = (int(number) for number in sys.argv[1:6])
    die_with(parent)
    # Ctrl-C that is sent to a worker ends it; a KeyboardInterrupt can then only be the environment's own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for descriptor in (handle, *memory):
        os.set_inheritable(descriptor, False)
    connection = Connection(handle)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the pool is gone and cannot be told
        name = "the environment"
        try:
            start = json.loads(connection.recv_bytes())
            name = start["name"]
            Worker(connection, memory, start).run()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except EXITS as error:
            Channel(handle).send(error_message(exit_of(error, name)))
        except Exception as error:  # all of it is for the pool to hear
            Channel(handle).send(error_message(error))
