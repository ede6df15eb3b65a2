"""The specification: one thread, act, insert, learn; the same seed gives the same bits."""

from laser_rl.agent.streams import own_stream
from laser_rl.runtime.build import learn
from laser_rl.runtime.feed import Crate
from laser_rl.runtime.training import Training


def run_serial(training: Training) -> None:
    """Act and learn in turn until the steps are done, the time is over or somebody asks to stop."""
    member = training.member
    actor, mixer, learner = member.actor, member.mixer, member.learner
    crate = Crate.of(member, own_stream(learner.device, "uploading"))
    while training.goes_on():
        actor.version = learner.version
        taken = actor.step()
        training.acted(taken.steps, taken.episodes)
        if taken.unrolls is not None:
            mixer.offer(taken.unrolls)
            while mixer.ready():
                crate.fill(mixer.fill)
                with crate.read() as batch:
                    learn(member, batch, progress=training.progress)
                training.learned()
        training.between()
