"""An agent with a memory learns T-mazes of several lengths at once: the cue at the start says which way to turn at the end.

    python examples/memory.py            # about a minute

The longest corridor takes several unrolls, so what the memory holds at the junction was seen unrolls ago. In the replay, episodes are gone
through from their first row, and their states come from the parameters that learn.
"""

import sys

from laser_rl import LASER

MAZES = "laser/TMaze-2,laser/TMaze-5,laser/TMaze-15"


def main(steps: int) -> float:
    """Train, and say how often the right turn was taken in each maze."""
    agent = LASER(
        MAZES,
        recipe="cartpole",
        seed=1,
        slots=12,
        memory="lstm",
        memory_size=64,
        memory_span=50,  # units that last: gradients reach back no further than an unroll
        hidden=(32,),
        unroll_steps=8,
        batch_unrolls=32,
        entropy_cost=3e-3,
        trust_bound=0.1,
        reward_scale=1.0,
        learning_rate=1e-3,
        schedule="constant",
        clip_gradient_norm=0.5,
    )
    agent.learn(steps)
    result = agent.evaluate(episodes=60, deterministic=True)
    for task in result.tasks:
        print(f"{task.name}: mean return {task.mean:.2f} in {task.episodes} episodes")
    agent.close()
    return result.score


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
