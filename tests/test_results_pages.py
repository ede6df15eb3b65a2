"""What the prose of README and results says is what the kept runs give; `test_made_pages.py` has the tables."""

import csv
import json
import re
import statistics
from pathlib import Path

from benchmarks import entropy, peers, search, search_report, width, width_report
from benchmarks.learning_report import REPLAY, ends_of
from benchmarks.sharing import BOUNDS
from laser_rl import recipes
from laser_rl.config import override

RESULTS = Path(__file__).parents[1] / "docs" / "results"
ROOT = RESULTS.parents[1]


def rows_of(name):
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def kept(name, **place):
    """The mean with its interval of the one row that is at `place`."""
    [row] = [row for row in rows_of(name) if place.items() <= row.items()]
    return [float(row[column]) for column in ("difference" if "difference" in row else "mean", "low", "high")]


def told(numbers, digits=2):
    mean, low, high = (f"{number:.{digits}f}".replace("-", "−") for number in numbers)
    return f"{mean} [{low}, {high}]"


def says(page, *sentences):
    text = " ".join((ROOT / page).read_text().split())
    for sentence in sentences:
        assert sentence in text, sentence


def sharing(task, variant, measure, members="all"):
    return kept("sharing/tables.csv", task=task, members=members, variant=variant, measure=measure)


def test_what_is_said_of_small_tasks_and_of_the_demo_is_in_their_files():
    ratios = []
    for name in REPLAY:
        alone, with_replay = (
            statistics.median(end["step"] for end in ends_of(name, variant)[0])
            for variant in ("no replay, same number of updates", "87.5 % replay")
        )
        ratios.append(f"{alone / with_replay:.1f}")
    runs = {
        steps: {
            int(run["seed"]): min(float(run[f"member_{member}"]) for member in range(3)) > 0.9
            for run in rows_of("demo.csv")
            if run["steps"] == steps
        }
        for steps in ("20000", "30000")
    }
    first, default = (sum(runs[steps][seed] for seed in range(30)) for steps in runs)
    assert not runs["20000"][37]
    assert runs["30000"][37]
    says(
        "docs/results/README.md",
        "a factor of {} on CartPole and {} on Catch".format(*ratios),
        f"With 30,000 steps a member, all three members solve it on {default} of 30 seeds (0 to 29), and on seed 37",
        f"With 20,000 steps it was {first} of 30.",
    )
    assert default == 30
    says("README.md", "All three agents solved it with each of [30 seeds](docs/results/README.md#the-demo).")
    assert recipes.demo().base.run.steps == 30_000


def test_what_is_said_of_conventions_population_based_training_and_the_best_member_is_in_the_tables():
    naive, none = (sharing("convention", variant, "end") for variant in ("naive", "none"))
    rho = [f"{sharing('convention', f'naive rho {clip}', 'end')[0]:.2f}" for clip in (2, 4)]
    both = [f"{sharing('convention', 'trust 0.01', 'end', one)[0]:.2f}" for one in ("majority", "minority")]
    pbt = {
        task: [f"{sharing(task, variant, 'whole run')[0]:.2f}" for variant in ("trust 0.1 pbt", "trust 0.1")]
        for task in ("deepsea-12", "keydoor-8")
    }
    best = [told(sharing("deepsea-14", variant, "best")) for variant in ("trust 0.1", "separate")]
    says(
        "docs/results/sharing/README.md",
        f"the sweep ends at {told(naive)}, without any replay at {none[0]:.2f}; ρ̄ = 2 and 4 end at {rho[0]} and {rho[1]}",
        "at the optimum of both groups ({} and {})".format(*both),
        "{} against {} on DeepSea 12, {} against {} on KeyDoor".format(*pbt["deepsea-12"], *pbt["keydoor-8"]),
        f"the best member ends at {best[0]} with one replay and at {best[1]} with one each",
    )
    shares, separate = (sharing("deepsea-12", variant, "whole run")[0] for variant in ("trust 0.1", "separate"))
    empty, raised = (
        sum(float(row["evaluation"]) > 0.9 for row in rows_of("sharing/warm-start.csv") if row["variant"] == variant)
        for variant in ("empty replay", "b = 1")
    )
    says(
        "docs/when-to-share.md",
        f"DeepSea 12 {shares:.2f} against {separate:.2f}",
        f"Convention ends at {naive[0]:.2f} instead of {none[0]:.2f}",
        f"{raised} of 10 seeds against {empty} of 10",
    )


def test_what_is_said_of_the_bound_is_in_the_tables():
    score = {bound: sharing("convention", f"trust {bound:g}", "whole run")[0] for bound in BOUNDS}
    assert max(bound for bound in BOUNDS if score[bound] >= 0.95 * max(score.values())) == 0.1
    for task in ("deepsea-12", "keydoor-8", "catch"):
        of = {bound: sharing(task, f"trust {bound:g}", "whole run")[0] for bound in BOUNDS}
        assert max(of, key=of.__getitem__) == BOUNDS[-1], task
    targets = {
        task: {share: sharing(task, f"target {share}", "whole run")[0] for share in ("0.5", "0.9")}
        for task in ("convention", "deepsea-12")
    }
    assert targets["convention"]["0.5"] > targets["convention"]["0.9"]
    assert targets["deepsea-12"]["0.9"] > targets["deepsea-12"]["0.5"]


def test_what_is_said_of_the_width_is_what_its_claims_decide():
    scores = width_report.scores_of(width.load())
    made = {claim: (round(mean, 3), verdict) for claim, mean, _, _, verdict in width_report.claims(scores)}
    each, naive, trust = "separate", "naive", "trust"
    assert {claim: verdict for claim, (_, verdict) in made.items()} == {
        f"{trust} less {each}: mean": "more",
        f"{trust} less {each}: slope": "less",
        f"{naive} less {each}: mean": "more",
        f"{naive} less {each}: slope": "undecided",
        f"{trust} less {naive}: mean": "undecided",
        f"{trust} less {naive}: slope": "less",
    }
    gains = [made[f"{one} less {each}: mean"][0] for one in (trust, naive)]
    falls = -made[f"{trust} less {each}: slope"][0], -made[f"{trust} less {naive}: slope"][0]
    assert {f"{gain:.2f}" for gain in gains} == {"0.04"}
    place = {"task": "over tasks", "width": "paper", "condition": "trust 0.1", "less": "separate 0.1"}
    best = kept("sharing/width-differences.csv", **place, measure="pointwise best")
    says(
        "docs/results/sharing/width.md",
        "**Sharing helps on average over the widths**, by 0.04 of the distance",
        f"**With the trust region its gain falls with the width**, by {falls[0]} for each factor of ten",
        f"falls with the width**, by {falls[1]} for each factor of ten",
        f"by which sharing brings {told(best)}",
    )

    def gain(task, at, one, other, measure="whole run"):
        return statistics.mean(width_report.gain(scores, task, at, one, other, measure).values())

    at_any = [*width.WIDTHS, "paper"]
    assert all(gain("convention", at, one, "separate 0.1") < 0 for at in at_any for one in ("naive", "trust 0.1"))
    assert all(gain("without convention", at, "trust 0.1", "naive") < 0 for at in at_any)
    for at in at_any:
        row = kept(
            "sharing/width-differences.csv",
            task="without convention",
            width=str(at),
            condition="trust 0.1",
            less="separate 0.1",
            measure="best",
        )
        assert row[1] < 0 < row[2]
    costs = [gain("over tasks", at, "trust 0.1", "naive") for at in (100, 1000)]
    assert {f"{-cost:.2f}" for cost in costs} == {"0.05"}
    says(
        "docs/when-to-share.md",
        "settings differ by factors of 100 and more",
        "the trust region (b = 0.1) then costs 0.05 of the scale",
    )
    says(
        "README.md",
        "Sharing helps on average over all widths of a sweep; with the trust region its gain falls with the width",
    )


def test_what_is_said_of_a_search_is_in_its_table():
    ends = {
        condition: f"{kept('sharing/search.csv', task='over tasks', condition=condition, measure='end')[0]:.2f}"
        for condition in ("search", "inherit", "apart")
    }
    made = search_report.claims(search_report.scores_of(search.load()))
    assert all(mean > 0 and verdict == "undecided" for _, mean, _, _, verdict in made)
    says(
        "docs/results/sharing/search.md",
        "No claim is decided with five seeds. Every estimate points to sharing and to inheriting",
        f"the searches that share end at {ends['search']} and {ends['inherit']} over the tasks, independent trials at {ends['apart']}",
    )


def test_what_is_said_of_pure_replay_is_what_its_claims_decide():
    text = (RESULTS / "README.md").read_text()
    claims = entropy.markdown(entropy.scores_of(width.load(entropy.KEPT))).splitlines()[2:]
    assert all(line in text and line.endswith("| undecided |") for line in claims)
    assert len(claims) == 3
    for task in entropy.NAMES:  # far from random play
        assert kept("entropy.csv", task=task, condition="pure replay")[1] > 0.2
    says("docs/results/README.md", "it does not fail, with or without: no difference is decided.")


def test_what_is_said_of_a_memory_is_in_its_files():
    rows = [row for row in rows_of("recurrent/tmaze-without-clipping.csv") if row["variant"] == "refresh"]
    runs = {
        seed: [float(row["score"]) for row in rows if row["seed"] == seed] for seed in {row["seed"] for row in rows}
    }
    fallen = [curve for curve in runs.values() if min(curve[curve.index(max(curve)) :]) < 0.9]
    [curve] = fallen
    assert len(runs) == 5
    low = min(curve[curve.index(max(curve)) :])
    says(
        "docs/results/recurrent/README.md",
        f"one of five refreshed runs fell from {max(curve):.2f} to {low:.2f} and ended at {curve[-1]:.2f}",
    )


def test_what_is_said_of_doom_is_in_its_file():
    def ends(variant, column):
        """Of each run of a single agent: the newest value by 300,000 steps, or the first after them."""
        own = [row for row in rows_of("recurrent/doom.csv") if row["variant"] == variant and int(row["step"]) > 290_000]
        runs = {row["seed"]: row for row in sorted(own, key=lambda row: -abs(int(row["step"]) - 300_000))}
        assert len(runs) == 2
        return statistics.mean(float(row[column]) for row in runs.values())

    laser, *impala = (
        f"{ends(variant, 'score_mean_capped'):.2f}"
        for variant in ("LASER", "PopArt-IMPALA", "PopArt-IMPALA + PixelControl")
    )
    [without] = set(impala)
    says("README.md", f"after 300,000 steps, LASER's mean capped score is {laser}, IMPALA's {without}")
    basic, health = (ends("LASER", f"return_of_doom/{task}") for task in ("basic", "health_gathering"))
    says("docs/results/recurrent/README.md", f"`basic` {basic:.0f}, its best; `health_gathering` {health:,.0f}")


def test_what_is_said_of_peers_is_in_the_table_of_differences():
    better = {
        row["task"].partition("-v")[0]: row["better"]
        for row in rows_of("peers/differences.csv")
        if (row["ours"], row["peer"]) == ("default", "ppo")
    }
    named = ("CartPole", "Acrobot", "LunarLander", "MountainCarContinuous", "Pendulum")
    assert {one: better[one] for one in named} == {**dict.fromkeys(named, "–"), **dict.fromkeys(named[3:], "ours")}
    says(
        "docs/results/peers/README.md",
        f"On none of {', '.join(named[:-1])} and {named[-1]} is the default decided to be worse than PPO's; it is better on the last two.",
        "On CartPole no run of ours fell below a mean of 450 after it was solved.",
    )
    [ours] = [
        row for row in rows_of("peers/agents.csv") if row["task"].startswith("CartPole") and row["agent"] == "LASER"
    ]
    assert ours["longest_dip"] in {"0", "–"}


def test_what_is_said_of_sharing_is_in_the_table_of_differences():
    with (RESULTS / "sharing" / "differences.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kept = {f"{row['difference']} [{row['low']}, {row['high']}]".replace("-", "−") for row in rows}
    text = (RESULTS / "sharing" / "README.md").read_text()
    said = re.findall(r"−?\d\.\d{3} \[−?\d\.\d{3}, −?\d\.\d{3}\]", text)
    assert len(said) == 6
    assert set(said) <= kept
    decided = {(row["variant"], row["less"], row["verdict"]): set() for row in rows}
    for row in rows:
        decided[row["variant"], row["less"], row["verdict"]].add(row["task"])
    assert decided["trust 0.1", "separate", "better"] == {"sparsegrid-8", "over tasks"}
    assert decided["naive", "separate", "better"] == {"deepsea-12", "keydoor-8", "sparsegrid-8", "catch"}
    assert decided["trust 0.1", "naive", "worse"] == {"deepsea-12", "catch", "breakout"}
    of = [row for row in rows if (row["variant"], row["less"]) == ("importance 0.1", "trust 0.1")]
    assert [row["task"] for row in of] == ["convention", "deepsea-12", "catch", "cartpole", "over tasks"]
    assert {row["verdict"] for row in of} == {"undecided"}
    assert {row["seeds"] for row in of} == {"5", "4"}  # over tasks, those are the sample
    told_over = [of[-1][name] for name in ("difference", "low", "high")]
    says(
        "docs/results/sharing/README.md", "over four tasks {} [{}, {}], undecided".format(*told_over).replace("-", "−")
    )
    [over] = [
        row for row in rows if (row["task"], row["variant"], row["less"]) == ("over tasks", "trust 0.1", "separate")
    ]
    share = [f"{100 * float(row):.0f}" for row in (over["difference"], over["low"], over["high"])]
    readme = (RESULTS.parents[1] / "README.md").read_text()
    assert "{} % [{}, {}] of the return, p = {}".format(*share, over["p_holm"]) in readme


def test_what_is_said_of_pictures_is_in_their_rows_and_the_recipe_is_the_best_that_was_tried():
    judged, tuned = (peers.rows_of(ROOT / "benchmarks" / "results" / f"pictures{end}.jsonl") for end in ("", "-tuning"))
    ours = [row for row in judged if row["arm"] == "default"]
    seconds = statistics.median(row["cpu_seconds"] for row in ours)
    assert {row["steps"] for row in ours} == {30_000}
    assert {row["settings"] for row in ours} == {"{}"}
    assert not {row["seed"] for row in ours} & {row["seed"] for row in tuned}
    assert "Pictures/Breakout-v0" in {row["task"] for row in tuned}
    assert not {"Pictures/SpaceInvaders-v0", "Pictures/LavaGapS5-v0"} & {row["task"] for row in tuned}
    [best] = [
        row
        for row in tuned
        if row["last100"] == max(one["last100"] for one in tuned if one["task"] == "Pictures/Breakout-v0")
    ]
    [before] = [row for row in tuned if '"optimiser.schedule": "linear"' in row["settings"]]
    says(
        "docs/results/pictures/README.md",
        f"A run took {seconds:.0f} s of processor time (median): {30_000 / seconds:.0f} steps a second.",
        f"[{len(tuned)} runs]",
        f"took {before['cpu_seconds']:.0f} s on Breakout where this one took {best['cpu_seconds']:.0f}.",
    )
    assert override(recipes.pictures(), json.loads(best["settings"])) == recipes.pictures()
