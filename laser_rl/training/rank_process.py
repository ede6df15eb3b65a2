"""One of the other ranks of a learner: obeys rank 0, and dies with it.

Started by `runtime.ranks`. It has no environments, no replay and no files: a learner, and its columns of the batches that rank 0 fills.
"""

import importlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import safetensors.torch
import torch

from laser_rl.agent.learner import Learner
from laser_rl.config import override, validated
from laser_rl.envs.worker import Channel, read_spec
from laser_rl.errors import UserError
from laser_rl.gpu_streams import Handover, own_stream
from laser_rl.networks.build import TorsoSource
from laser_rl.replay.records import DeviceBatch
from laser_rl.training.batch_source import PinnedBatch
from laser_rl.training.build import build_learner, threads_of
from laser_rl.training.process_group import ProcessTeam, RankPlace, join, lost_contact
from laser_rl.training.shared_batches import BatchPlan, SharedBatches
from laser_rl.training.stop import deaf
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.training")
LOST = 5  # exit status: another rank is gone


class Follower:
    """A rank that is told what to do.

    Args:
        start: what `runtime.ranks` says of it.
        channel: to rank 0.
    """

    def __init__(self, start: Mapping[str, Any], channel: Channel) -> None:
        self._channel, self._state = channel, start["state"]
        self._device = torch.device(start["device"])
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        plan = _plan(start["plan"])
        self._batches = SharedBatches(plan, start["batches"])
        channel.send(b"start")
        self.team: ProcessTeam = join(RankPlace(*start["place"]), self._device, timeout_s=start["timeout_s"])
        config = override(validated(start["config"]), {"run.device": str(self._device)})
        self.learner: Learner = build_learner(
            config, read_spec(start["spec"].encode()), _torso(start["torso"]), sources=start["sources"], team=self.team
        )
        torch.set_num_threads(threads_of(config, self.learner.network))  # as many as rank 0: sums of as many parts
        self._handovers = [Handover(self._device) for _ in range(plan.batches)]
        self._crates = [self._crate(number) for number in range(plan.batches)]

    def _crate(self, number: int) -> PinnedBatch:
        host, stream = self._batches.part(number, self.team), own_stream(self._device, "uploading")
        if stream is None:
            return PinnedBatch(host, None, self._handovers[number])
        if number == 0:
            self._batches.pin()
        there = DeviceBatch(self._batches.plan.layout, host, self._device)
        there.record_stream(stream)
        return PinnedBatch(host, there, self._handovers[number], stream)

    def obey(self) -> None:
        """Until it is told to end. There is no limit for the next order: rank 0 may evaluate, and if it dies so does this process."""
        while True:
            for message in self._channel.receive():
                order = json.loads(message)
                if "end" in order:
                    return
                self._obey(order)

    def _obey(self, order: Mapping[str, Any]) -> None:
        if "filled" in order:
            self._crates[order["filled"]].fill(lambda _: None)  # uploaded ahead, where there is somewhere to
        elif "state" in order:
            self._load(order["state"], order["numbers"])
            self._channel.send(b"state")
        else:
            self._update(order["update"], order["progress"])

    def _update(self, number: int, progress: float) -> None:
        on_card, read = self._device.type == "cuda", f"batch {number}".encode()
        if on_card:
            self._handovers[number].await_written(f"rank {self.team.rank}", "the upload of a batch")
            self._channel.send(read)
        with self._crates[number].read() as batch:
            self.learner.update(batch, progress=progress)
        if not on_card:
            self._channel.send(read)

    def _load(self, size: int, numbers: Mapping[str, Any]) -> None:
        tensors: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in safetensors.torch.load(_read(self._state, size)).items():
            group, _, last = name.partition("/")
            tensors.setdefault(group, {})[last] = tensor
        self.learner.load_state_dict(tensors, numbers)


def _read(file: int, size: int) -> bytes:
    data = bytearray(size)
    done = 0
    while done < size:
        done += os.preadv(file, [memoryview(data)[done:]], done)
    return bytes(data)


def _plan(values: Mapping[str, Any]) -> BatchPlan:
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values["layout"].items()}
    return BatchPlan(**{**values, "layout": UnrollLayout(**fields)})


def _torso(reference: str | None) -> TorsoSource | None:
    if reference is None:
        return None
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def main(handle: int) -> NoReturn:
    """Entry, see `ranks`: what to do is the first message."""
    deaf()
    logging.basicConfig(format="laser: %(message)s", level=logging.WARNING)
    channel, status = Channel(handle), 0
    try:
        follower = Follower(json.loads(_first(channel)), channel)
        follower.obey()
        follower.team.close()
    except UserError as error:
        print(f"laser: {error}", file=sys.stderr)
        status = error.exit_status
    except (EOFError, ConnectionResetError, BrokenPipeError):
        status = LOST  # rank 0 is gone, and says why
    except RuntimeError as error:
        if not lost_contact(error):
            raise
        status = LOST  # rank 0 finds out who is gone, and says so
    sys.stderr.flush()
    os._exit(status)  # what Python takes apart on its way out may wait for ranks that are gone


def _first(channel: Channel) -> bytes:
    messages: list[bytes] = []
    while not messages:
        messages = channel.receive()
    return messages[0]
