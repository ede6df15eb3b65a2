"""A sweep that shares its replay, and the same sweep without sharing, on DeepSea: the treasure pays only after ten right moves in a row.

Who has found it once needs nobody. Who has not learns it from the data of the others, if there is one replay.
"""

import sys

from laser_rl import LASER, Sweep


def run(share, steps):
    """Three learning rates, one replay for all or one each."""
    sweep = Sweep(
        "laser/DeepSea-10",
        recipe="demo",
        grid={"learning_rate": [5e-4, 1e-3, 2e-3]},
        share_replay=share,
        seed=1,
        evaluate_episodes=20,
    )
    return sweep.run(steps)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for share in (True, False):
        result = run(share, steps)
        print("one replay for all:" if share else "a replay each:")
        for member in result.members:
            rate = member.settings["learning_rate"]
            print(
                f"  member {member.number}, learning rate {rate:g}: mean return {member.evaluation.mean:.2f}, at best 0.99"
            )
    best = result.best()
    agent = LASER.load(best.save("best.laser"))
    print(f"member {best.number} again, from its file: {agent.evaluate(20).mean:.2f}")
    agent.close()
