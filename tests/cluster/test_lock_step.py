"""An agent that learns from a shard in lock-step ends with the parameters of one that learns from a `Replay`, to the last bit."""

import hashlib

from laser_rl.cluster.shard import ShardPlan
from laser_rl.cluster.sharded import ShardedReplay
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.training import build, trainer
from tests.cluster.raylets import NearShard, send
from tests.training.small import finish, small


class WrittenReplay(ShardedReplay):
    """One that inserts into its only shard, as a runner would."""

    def insert_packed(self, packed):
        [shard] = self.directory.shards().values()
        send(shard, seal(packed, "raw"), number=shard.span()[1])


def learned(config):
    _, training = finish(config)
    value = training.member.learner.flat.value.detach().cpu().numpy()
    return hashlib.sha256(value.tobytes()).hexdigest(), training.update, training.member.replay


def test_serial_over_one_shard_gives_the_same_parameters(monkeypatch):
    config = small("laser/Catch", **{"run.steps": 500, "run.runtime": "serial", "capacity_steps": 200})
    expected, updates, store = learned(config)
    shards = []

    def sharded(config, layout, *, shared=False):
        shards.append(NearShard(ShardPlan(layout, config.replay.capacity_steps, number=0)))
        return WrittenReplay(layout, lambda: shards, ahead=0)

    monkeypatch.setattr(build, "build_replay", sharded)
    monkeypatch.setattr(trainer, "stores_of", lambda members: [])  # of a Replay, to be filled from an earlier run
    found, versions, replay = learned(config)
    assert isinstance(replay, WrittenReplay)
    assert updates == versions > 20
    assert len(replay) == len(store)
    assert found == expected
