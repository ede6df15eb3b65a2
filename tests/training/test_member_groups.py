"""Members in turn, where what acts is a copy that follows its learner (as on a GPU)."""

import torch

from laser_rl.training.member_group import MemberGroup
from tests.training.small import build_member, small


def apart(seed=0):
    """A member whose acting network is not its learner's."""
    return build_member(small("laser/Catch", runtime="local", seed=seed))


def values(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def test_unrolls_carry_the_version_that_acted_and_updates_are_followed():
    members = [apart(0), apart(1)]
    crew = MemberGroup(members)
    with torch.no_grad():
        for member in members:
            member.learner.flat.value.mul_(0.5)  # loaded, say, after everything was built
    crew.begin()
    list(crew.act([True, True]))
    for member in members:
        assert torch.equal(values(member.acting), values(member.learner.network))
    versions: list[int] = []
    for _ in range(60):
        for place, moves in crew.act([True, True]):
            if moves.unrolls is not None:
                versions += moves.unrolls.version.tolist()
                members[place].mixer.offer(moves.unrolls)
        while ready := crew.ready():
            crew.learn(ready, [0.0] * len(ready))
    assert members[0].learner.version > 3
    assert 0 < max(versions) <= max(member.learner.version for member in members)
    list(crew.act([True, True]))
    for member in members:
        assert torch.equal(values(member.acting), values(member.learner.network))
        assert member.actor.version == member.learner.version
    crew.close()


def test_the_learners_own_network_needs_no_copy():
    member = build_member(small("laser/Catch"))
    crew = MemberGroup([member])
    crew.begin()
    assert member.acting is member.learner.network
    assert not crew._following
    crew.close()
