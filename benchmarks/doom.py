"""ViZDoom's scenarios as the agent has them: scores to compare with, speed, and a picture of each.

    python -m benchmarks.doom scores            # docs/results/doom/references.csv, from which suites.csv has its numbers
    python -m benchmarks.doom speed             # benchmarks/results: environments beside ViZDoom alone
    python -m benchmarks.doom frames            # docs/images/doom.png: each scenario as the agent sees it
    python -m benchmarks.doom film              # docs/images/doom.gif: trains an agent on one core, ten minutes, and films it

Random play chooses uniformly among the nine actions. `best` is what the scenario's rules allow at most where that is known (`LIMITS`; 0
episodes), against bots the frags of the best of them, else the mean return of a player written by hand. The player knows what the engine
draws where (ViZDoom's labels), acts as the agent does, every four tics by the nine actions, and aims at a monster that is near and near
the middle. An agent can be better than that. Seeds are 0, 1, 2, …; `_se` are standard errors.
"""

import argparse
import contextlib
import csv
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageSequence

from benchmarks.recurrent import TINY
from benchmarks.references import row_of
from laser_rl import LASER, cli
from laser_rl.envs.doom import PRESSED, SCENARIOS, DoomEnv
from laser_rl.envs.make import make_environments
from laser_rl.envs.scores import SUITES

DOCUMENTS = Path(__file__).parents[1] / "docs"
RESULTS = DOCUMENTS / "results" / "doom"
SPEED = (
    Path(__file__).parent
    / "results"
    / f"{time.strftime('%Y-%m-%d')}-doom-speed-{len(os.sched_getaffinity(0))}-cores.csv"
)
FORWARD, BACK, LEFT, RIGHT, TURN_LEFT, TURN_RIGHT, _, _, FIRE = range(len(PRESSED))
# What the rules allow at most: the way to the vest (eight of ten walks on ViZDoom's easiest skill, where monsters hardly hit, gave 2,277 to
# 2,284); 26 bullets and the death at the end; the time limit; a target that pays 1 less the time to it. In take_cover and deathmatch the
# goals of OpenAI Gym's versions.
LIMITS = {
    "deadly_corridor": 2280.0,
    "defend_the_center": 25.0, "health_gathering": 2100.0, "health_gathering_supreme": 2100.0, "my_way_home": 1.0,
    "my_way_home_sparse": 1.0, "my_way_home_very_sparse": 1.0, "take_cover": 750.0, "deathmatch": 20.0, "predict_position": 1.0,
}  # fmt: skip
SPEED_SCENARIOS = ("basic", "deadly_corridor", "my_way_home", "deathmatch", "deathmatch_bots")
Player = Callable[[DoomEnv, np.random.Generator], int]


class Labelled(DoomEnv):
    """With the places of all that is in the picture, for a player written by hand."""

    def _configure(self, game: Any, config: str) -> None:
        super()._configure(game, config)
        game.set_labels_buffer_enabled(True)

    def seen(self, *words: str) -> list[Any]:
        """What is in the picture whose category or name is one of these."""
        state = self.game.get_state()
        labels = state.labels if state else []
        return [
            label
            for label in labels
            if label.object_category != "Self" and {label.object_category, label.object_name} & set(words)
        ]

    @property
    def exact(self) -> bool:
        """Whether the scenario switches the engine's own aiming off."""
        return "noautoaim" in self.game.get_game_args()

    def has(self, button: str) -> bool:
        """Whether the scenario has this button."""
        return button in {one.name for one in self.game.get_available_buttons()}


def middle(label: Any) -> float:
    """Pixels to the right of the picture's middle."""
    return float(label.x + label.width / 2 - 80)


def at_random(env: DoomEnv, rng: np.random.Generator) -> int:
    """Uniformly among the actions."""
    return int(rng.integers(len(PRESSED)))


def by_hand(env: DoomEnv, rng: np.random.Generator) -> int:
    """Aim at a monster; look for one where there is none in the picture."""
    assert isinstance(env, Labelled)
    monsters = env.seen("Monster", "Player")
    if not monsters:
        if not env.has("MOVE_FORWARD"):
            return TURN_LEFT
        return FORWARD if rng.random() < 0.8 else int(rng.choice([TURN_LEFT, TURN_RIGHT]))
    monster = min(monsters, key=lambda one: abs(middle(one)) - 2 * one.width)
    offset = middle(monster)
    # The engine aims for itself where it may; a rocket has to be aimed better.
    if abs(offset) <= (max(2.0, 0.2 * monster.width) if env.exact else max(3.0, 0.5 * monster.width)):
        return FIRE
    if env.has("TURN_LEFT"):
        return TURN_LEFT if offset < 0 else TURN_RIGHT
    return LEFT if offset < 0 else RIGHT


def returns(env: DoomEnv, player: Player, episodes: int) -> Iterator[float]:
    """Of whole episodes."""
    rng = np.random.default_rng(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(player(env, rng))
            total, ended = total + reward, terminated or truncated
        yield total


def best_bots(episodes: int) -> Iterator[float]:
    """The frags of the best of ViZDoom's bots, beside random play."""
    with contextlib.closing(DoomEnv("deathmatch_bots")) as env:
        for seed in range(episodes):
            rng, ended = np.random.default_rng(seed), False
            env.reset(seed=seed)
            while not ended:
                _, _, terminated, truncated, _ = env.step(int(rng.integers(len(PRESSED))))
                ended = terminated or truncated
            names = [getattr(env.vizdoom.GameVariable, f"PLAYER{number}_FRAGCOUNT") for number in range(2, 9)]
            yield max(env.game.get_game_variable(name) for name in names)


def scores(asked: argparse.Namespace) -> None:
    """Measure what is not in the table yet."""
    path = RESULTS / "references.csv"
    there = list(csv.DictReader(path.open())) if path.exists() else []
    for task in SUITES["doom"]:
        name = task.id.removeprefix("doom/")
        if name not in asked.scenarios or any(row["task"] == task.id for row in there):
            continue
        begin = time.perf_counter()
        best: list[float] = [LIMITS[name]] if name in LIMITS else []
        with contextlib.closing(DoomEnv(name)) as env:
            played = list(returns(env, at_random, asked.random_episodes))
        if int(SCENARIOS[name]["bots"]):
            best = list(best_bots(asked.best_episodes))
        elif not best:
            with contextlib.closing(Labelled(name)) as env:
                best = list(returns(env, by_hand, asked.best_episodes))
        counts = {"random_episodes": len(played), "best_episodes": 0 if name in LIMITS else len(best)}
        how = f"--random-episodes {asked.random_episodes} --best-episodes {asked.best_episodes}"
        row = row_of(task, np.array(played), np.array(best)) | counts
        there.append({**row, "command": f"python -m benchmarks.doom scores {how}"})
        write(path, there)
        print(f"{row} in {time.perf_counter() - begin:.0f} s", flush=True)


def speed(asked: argparse.Namespace) -> None:
    """Steps a second: ViZDoom alone, the same picture and time, and environments in so many workers."""
    rows = []
    for name in asked.scenarios or SPEED_SCENARIOS:
        row: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "cores": len(os.sched_getaffinity(0)),
            "scenario": name,
        }
        row["vizdoom_alone"] = round(alone(name, asked.seconds))
        row["environment"] = round(one_environment(name, asked.seconds))
        for workers in asked.workers:
            row[f"workers_{workers}"] = round(in_workers(name, workers, asked.seconds))
        rows.append(row)
        print(row, flush=True)
    write(asked.out, rows)


def alone(name: str, seconds: float) -> float:
    """The engine with random buttons and nothing of ours but its settings; new episodes by their own."""
    env, rng = DoomEnv(name), np.random.default_rng(0)
    env.reset(seed=0)
    game, steps, end = env.game, 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        if game.is_episode_finished():
            game.new_episode()
        game.get_state()
        game.make_action(env.actions[int(rng.integers(len(PRESSED)))], 4)
        steps += 1
    env.close()
    return steps / seconds


def one_environment(name: str, seconds: float) -> float:
    """Our environment in this process."""
    env, rng, ended = DoomEnv(name), np.random.default_rng(0), True
    steps, seed, end = 0, 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        if ended:
            env.reset(seed=seed)
            seed += 1
        _, _, terminated, truncated, _ = env.step(int(rng.integers(len(PRESSED))))
        steps, ended = steps + 1, terminated or truncated
    env.close()
    return steps / seconds


def in_workers(name: str, workers: int, seconds: float) -> float:
    """Eight slots a worker, each step of all of them awaited."""
    slots = 8 * workers
    envs = make_environments(f"doom/{name}", slots=slots, seed=0, placement="process", workers=workers, lockstep=True)
    rows, rng = envs.reset(), np.random.default_rng(0)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + seconds:
        rows = envs.step(rows.slots, rng.integers(len(PRESSED), size=slots))
        steps += slots
    took = time.perf_counter() - begin
    envs.close()
    return steps / took


def frames(asked: argparse.Namespace) -> None:
    """A picture from the beginning of an episode of random play, twice as large, with the words of its last row."""
    columns, width, height = 5, 2 * 96 + 8, 2 * 72 + 34
    sheet = Image.new("RGB", (columns * width + 8, -(-len(SCENARIOS) // columns) * height + 8), "white")
    draw = ImageDraw.Draw(sheet)
    for place, name in enumerate(SCENARIOS):
        env, rng = DoomEnv(name), np.random.default_rng(1)
        observation, _ = env.reset(seed=asked.seed)
        for _ in range(asked.steps):
            observation, _, terminated, truncated, _ = env.step(int(rng.integers(len(PRESSED))))
            if terminated or truncated:
                break
        x, y = 8 + place % columns * width, 8 + place // columns * height
        picture = Image.fromarray(observation[:, :-1].transpose(1, 2, 0))
        sheet.paste(picture.resize((192, 144), Image.Resampling.NEAREST), (x, y + 22))
        draw.text((x, y), f"{name}\n{env.text.lower()[:34]}", fill="black", spacing=0)
        env.close()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(128).save(asked.out, optimize=True)
    print(f"{asked.out}: {sheet.size}, {asked.out.stat().st_size:,} bytes")


def film(asked: argparse.Namespace) -> None:
    """Learn `defend_the_center` with decisions every eight tics, and keep the first fifteen seconds of an episode in few colours."""
    options = {**TINY["environment.options"], "action_repeat": 8}
    settings = {**TINY, "environment.options": options, "run.seed": 1, "run.device": "cpu", "run.threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        run, whole = Path(folder) / "run", Path(folder) / "film.gif"
        with LASER("doom/defend_the_center", recipe="laser-multitask", run_dir=run, **settings) as agent:
            agent.learn(asked.steps)
            print(agent.evaluate(20), flush=True)
        cli.main(["enjoy", str(run), "--seed", str(asked.seed), "--video", str(whole)])
        with Image.open(whole) as played:
            pictures = [picture.convert("RGB") for picture in ImageSequence.Iterator(played)][:60]
    strip = Image.new("RGB", (160 * len(pictures), 120))
    for place, picture in enumerate(pictures):
        strip.paste(picture, (160 * place, 0))
    colours = strip.quantize(24)
    first, *others = (picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in pictures)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    first.save(asked.out, save_all=True, append_images=others, duration=250, loop=0)
    print(f"{asked.out}: {len(pictures)} pictures, {asked.out.stat().st_size:,} bytes")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """All rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """The commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("scores")
    measured.add_argument("--scenarios", nargs="+", default=list(SCENARIOS))
    measured.add_argument("--random-episodes", type=int, default=300)
    measured.add_argument("--best-episodes", type=int, default=100)
    measured.set_defaults(run=scores)
    timed = commands.add_parser("speed")
    timed.add_argument("--scenarios", nargs="+")
    timed.add_argument("--seconds", type=float, default=5.0)
    timed.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    timed.add_argument("--out", type=Path, default=SPEED)
    timed.set_defaults(run=speed)
    drawn = commands.add_parser("frames")
    drawn.add_argument("--out", type=Path, default=DOCUMENTS / "images" / "doom.png")
    drawn.add_argument("--seed", type=int, default=7)
    drawn.add_argument("--steps", type=int, default=9)
    drawn.set_defaults(run=frames)
    filmed = commands.add_parser("film")
    filmed.add_argument("--out", type=Path, default=DOCUMENTS / "images" / "doom.gif")
    filmed.add_argument("--seed", type=int, default=3)
    filmed.add_argument("--steps", type=int, default=70_000)
    filmed.set_defaults(run=film)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
