"""The simulated cluster, against closed forms, a twin of single events and what was measured; docs/scaling.md shows what it says."""

import csv
import doctest
import heapq
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks import (
    simulate,
    simulate_events,
    simulate_model,
    simulate_network,
    simulate_queues,
    simulate_report,
    simulate_sampling,
)
from benchmarks.scaling import Card, Case
from benchmarks.simulate_events import Simulation
from benchmarks.simulate_model import Cluster, Rates, calls_a_batch, demand, fluid, full_link_nodes, full_shard_nodes
from benchmarks.simulate_queues import Queues
from benchmarks.simulate_sampling import Law, batches, distance, excess_variance, variance, worth

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LAUNCHERS = ROOT / "examples" / "cluster"
# Calls that cost next to nothing: then links are what can be full.
QUICK = Rates(call_shard_s=1e-6, unroll_shard_s=1e-8, raw_shard_s=1e-8, unroll_learner_s=1e-6, raw_learner_s=1e-6)


@pytest.mark.parametrize(
    "module", [simulate_events, simulate_model, simulate_network, simulate_queues, simulate_report, simulate_sampling]
)
def test_examples_in_docstrings_hold(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


# Queues


def one_by_one(server, at, service):
    """A queue after the other, a job after the other."""
    free, finish = {}, np.empty(len(at))
    for job in sorted(range(len(at)), key=lambda job: (at[job], job)):
        finish[job] = free[server[job]] = max(at[job], free.get(server[job], 0.0)) + service[job]
    return finish


def test_queues_in_windows_are_those_of_single_events():
    random = np.random.default_rng(1)
    server, at = random.integers(0, 7, 900), random.random(900) * 10
    service = random.exponential(0.06, 900)
    queues, finish = Queues(7), np.empty(900)
    for begin in range(10):
        window = (at >= begin) & (at < begin + 1)
        finish[window] = queues.serve(server[window], at[window], service[window])
    np.testing.assert_allclose(finish, one_by_one(server, at, service), rtol=1e-12)
    assert queues.served_s.sum() == pytest.approx(service.sum())


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_a_queue_waits_as_long_as_pollaczek_and_khinchine_say(load):
    """M/D/1: the mean wait is ρ s / 2 (1 − ρ)."""
    random, count = np.random.default_rng(2), 400_000
    queues = Queues(1)
    queues.serve(np.zeros(count, int), np.cumsum(random.exponential(1 / load, count)), np.ones(count))
    assert queues.waited_s / count == pytest.approx(load / (2 * (1 - load)), rel=0.05)


# The cluster


def twin(cluster, rates, draws):
    """When draws are answered: every call an event of its own. Draws: (member's node, sent times, shards, counts)."""
    byte_s = 8e-9 / cluster.link_gbit
    free, order, events, answered = {}, iter(range(10**9)), [], {}
    for draw, (node, sent, shards, counts) in enumerate(draws):
        for at, shard, count in zip(sent, shards, counts, strict=True):
            heapq.heappush(events, (at + rates.latency_s, next(order), "shard", int(shard), node, int(count), draw))
    while events:
        at, _, stage, source, target, count, draw = heapq.heappop(events)
        size = count * rates.unroll_bytes + rates.header_bytes
        server, service = {
            "shard": (source, rates.call_shard_s + count * rates.unroll_shard_s),
            "out": (source, size * byte_s),
            "in": (target, size * byte_s),
        }[stage]
        begin = max(at, free.get((stage, server), 0.0))
        done = free[stage, server] = begin + service
        if stage == "shard" and source != target:
            heapq.heappush(events, (done, next(order), "out", source, target, count, draw))
        elif stage == "out":
            heapq.heappush(events, (begin + rates.latency_s, next(order), "in", source, target, count, draw))
        else:
            answered[draw] = max(answered.get(draw, 0.0), done)
    return answered


def test_calls_are_answered_when_a_twin_that_takes_one_event_at_a_time_says_so():
    cluster, rates, random = Cluster(nodes=5, link_gbit=0.2), Rates(), np.random.default_rng(3)
    network, heard, draws = simulate_network.Network(cluster, rates), {}, []
    for draw in range(60):
        node, begin = int(random.integers(5)), float(random.random())
        shards, counts = Law(5, 123).draw(node, random)
        draws.append((node, begin + network.ask_s * np.arange(1.0, len(shards) + 1), shards, counts))

        def ask(now, draw=draw):
            node, sent, shards, counts = draws[draw]
            network.gather(sent, shards, counts, node, lambda then: heard.__setitem__(draw, then))

        network.at(begin, ask)
    network.until(20.0)
    expected = twin(cluster, rates, draws)
    assert heard == pytest.approx(expected, rel=1e-9)
    assert network.into.longest_s > 0.01  # links were full at times, or the test would say nothing about them


def test_what_leaves_a_node_arrives_at_another():
    simulation = Simulation(Cluster(nodes=4, reports=False, spread=2, pbt_s=0.5))
    simulation.run(seconds=0.5)
    network = simulation.network
    simulation._draw = simulation._act = lambda now, member: None
    network._events.clear()  # nobody begins anything any more; what is on its way arrives
    network.until(5.0)
    assert network.out_bytes == network.in_bytes > 0
    assert not network._then


def test_bytes_are_those_of_the_unrolls_drawn_from_other_nodes():
    cluster, rates = Cluster(nodes=3, reports=False), Rates(header_bytes=0)
    found = Simulation(cluster, rates=rates).run(seconds=3.0)
    assert found.gbit == pytest.approx(demand(cluster, Card(), rates).gbit, rel=0.03)


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    cluster = Cluster(nodes=3, picks=8)
    first, again, other = (Simulation(cluster, seed=seed).run(seconds=0.5) for seed in (5, 5, 6))
    assert first == again
    assert first.draw_ms != other.draw_ms


@pytest.mark.parametrize(
    ("cluster", "rates", "limit"),
    [
        (Cluster(nodes=1), Rates(), "card"),
        (Cluster(nodes=1, case=Case(1, 0.875)), Rates(), "emulators"),
        (Cluster(nodes=16, shards="one", reports=False), Rates(), "shard"),
        (Cluster(nodes=3, link_gbit=1.0, compressed=False, reports=False), QUICK, "link out"),
        (Cluster(nodes=8, members=1, reports=False), Rates(call_learner_s=10e-3, latency_s=1e-3), "learner"),
    ],
    ids=["card", "emulators", "shard", "link", "learner"],
)
def test_what_is_full_makes_the_pace_as_on_paper(cluster, rates, limit):
    """The fluid limit; link saturation = bandwidth / bytes a batch."""
    found, limits = Simulation(cluster, rates=rates).run(seconds=1.5), fluid(cluster, Card(), rates)
    assert found.of_ideal == pytest.approx(limits["card"] / max(limits.values()), rel=0.06)
    assert found.busy[limit] > 0.93
    assert limits[limit] == max(limits.values())


def test_a_single_shard_is_full_where_two_ways_to_count_say_so():
    plan, rates = Cluster(shards="one", link_gbit=10), Rates()
    node = 8 * 123 * rates.unroll_bytes * 77_333 / 2560  # bits a second
    assert full_link_nodes(plan, Card(), rates) == pytest.approx(10e9 / node)
    batch = rates.call_shard_s + 123 * rates.unroll_shard_s
    assert full_shard_nodes(plan, Card(), rates) == pytest.approx(2560 / 77_333 / batch)


def test_one_node_makes_what_was_measured_on_one():
    (run,) = json.loads((RESULTS / "2026-11-16-gpu-members-x4.json").read_text())["runs"]
    found = Simulation(Cluster()).run(seconds=5.0)
    assert found.frames == pytest.approx(run["training_frames_per_second_all_members"], rel=0.02)
    acted = found.frames / 2560 * Case(4, 0.96).new_steps * 4
    assert acted == pytest.approx(run["environment_frames_per_second_all_members"], rel=0.02)
    lags = [row["lag_updates"] for row in run["one_member"]["rows"][1:]]
    assert found.lag == pytest.approx(np.mean(lags), rel=0.05)


def test_a_node_that_emulators_limit_learns_as_fast_as_was_measured():
    """×1, 87.5 %, 256 slots, one member: 106,850 training frames/s (benchmarks/README.md)."""
    plan = Cluster(case=Case(1, 0.875), members=1, slots=256)
    found = Simulation(plan, rates=Rates(shard_cores=0)).run(seconds=2.0)
    assert found.limit == "emulators"
    assert found.frames == pytest.approx(106_850, rel=0.03)


def test_rates_are_those_in_the_results():
    rates = Rates()
    with (RESULTS / "2026-11-16-cluster-calls-2-cores.csv").open() as file:
        found = {(row["what"], row["where"]): float(row["microseconds"]) for row in csv.DictReader(file)}
    for name, key in {
        "call_shard_s": ("a call", "shard"),
        "unroll_shard_s": ("an unroll", "shard"),
        "call_learner_s": ("a call", "learner"),
        "unroll_learner_s": ("an unroll", "learner"),
        "report_shard_s": ("report", "shard"),
        "report_learner_s": ("report", "learner"),
    }.items():
        assert 1e6 * getattr(rates, name) == pytest.approx(found[key], rel=0.01), name
    with (RESULTS / "2026-11-16-cluster-2-cores.csv").open() as file:
        sizes = {row["what"]: float(row["value"]) for row in csv.DictReader(file) if row["unit"] == "bytes/unroll"}
    assert rates.unroll_bytes == round(sizes["delivered to the shards"])
    assert rates.raw_bytes == sizes["put into the object store, raw"]


def test_the_census_asks_as_often_as_the_runtime_does():
    from laser_rl.cluster.sharded import AHEAD, REFRESH_S  # noqa: PLC0415

    assert (Rates().refresh_s, Cluster().ahead) == (REFRESH_S, AHEAD)


# Sampling


def test_picks_in_proportion_to_fill_are_uniform_over_unrolls():
    fill = (1.0, 2.0, 5.0, 0.5)
    held = batches(Law(4, 120, picks=6, fill=fill), 6000, np.random.default_rng(4))
    np.testing.assert_allclose(held.mean(axis=0) / 120, np.array(fill) / sum(fill), rtol=0.03)


def test_picked_uniformly_and_then_by_fill_would_be_biased():
    """What the picks are not: the reason for drawing shards in proportion to fill."""
    fill, random = np.array([1.0, 2.0, 5.0, 0.5]), np.random.default_rng(4)
    shares = np.zeros(4)
    for _ in range(6000):
        chosen = random.choice(4, 2, replace=False)
        shares[chosen] += fill[chosen] / fill[chosen].sum() / 6000
    assert np.abs(shares - fill / fill.sum()).max() > 0.1


def test_few_picks_cost_the_variance_that_the_formula_says_and_rotation_gives_it_back():
    law, shards, random = Law(32, 120, picks=8), 32, np.random.default_rng(5)
    plain = 1 / shards * (1 - 1 / shards) / 120
    assert variance(batches(law, 4000, random), 1) / plain == pytest.approx(excess_variance(law), rel=0.05)
    turned = batches(law, 4000, random, rotating=True)
    assert variance(turned, shards // law.picks) == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_array_equal(turned.sum(axis=0), 4000 * 120 // shards)


def test_a_local_share_is_as_far_from_uniform_as_the_formula_says():
    law, own = Law(16, 123, local=0.4), 3
    held = batches(law, 4000, np.random.default_rng(6), own=own).sum(axis=0) / (4000 * 123)
    assert held[own] == pytest.approx(0.4 + 0.6 / 16, rel=0.02)
    assert 0.5 * np.abs(held - 1 / 16).sum() == pytest.approx(distance(law, own), rel=0.03)
    assert distance(law, own) == pytest.approx(0.4 * (1 - 1 / 16))
    assert worth(replace(law, shards=10_000)) == pytest.approx(0.6, rel=1e-3)


def test_a_batch_asks_as_many_shards_as_the_formula_says():
    for cluster in (Cluster(nodes=50), Cluster(nodes=50, picks=8), Cluster(nodes=200)):
        law = Law(cluster.nodes, 123, cluster.picks)
        asked = (batches(law, 2000, np.random.default_rng(7)) > 0).sum(axis=1).mean()
        assert asked == pytest.approx(calls_a_batch(cluster), rel=0.02)


# What is shown


@pytest.fixture(scope="module")
def kept():
    return json.loads(simulate.KEPT.read_text())


def test_the_document_and_the_kept_tables_show_what_the_script_says(kept):
    tables = simulate_report.tables(kept, Card(), Rates())
    assert simulate.KEPT.with_name("2026-11-16-simulation-tables.txt").read_text().strip() == tables.strip()
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert simulate_report.by_design(kept) in page
    assert (ROOT / "docs" / "images" / "cluster-simulation.png").stat().st_size > 10_000


def test_kept_rows_are_those_of_all_scenarios_and_come_out_again(kept):
    plans = simulate_report.scenarios()
    assert list(kept) == list(plans)
    for name in (f"{simulate_report.PICKED} | 3", "groups of 10 nodes | 1"):
        again = simulate.simulated(plans[name])
        assert kept[name]["of_ideal"] == pytest.approx(again["of_ideal"], rel=1e-4)
        assert kept[name]["draw_ms"] == pytest.approx(again["draw_ms"], rel=1e-3)


@pytest.mark.slow
def test_all_rows_up_to_thirty_nodes_come_out_again(kept):
    for name, plan in simulate_report.scenarios((1, 3, 10, 30)).items():
        assert kept[name]["of_ideal"] == pytest.approx(simulate.simulated(plan)["of_ideal"], rel=1e-4), name


def test_a_senseless_cluster_is_refused_in_a_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["simulate", "one", "--local", "3"])
    with pytest.raises(SystemExit, match=r"^error: expected a local share from 0 to 1, .*; see --help$"):
        simulate.main()


def test_one_cluster_is_shown_beside_what_is_expected_on_paper(monkeypatch, capsys):
    flags = ["--nodes", "2", "--training-frames", "25600", "--unroll-bytes", "20000"]
    monkeypatch.setattr(sys, "argv", ["simulate", "one", *flags])
    simulate.main()
    shown = capsys.readouterr().out
    assert float(shown.split("frames")[1].split()[0].replace(",", "")) == pytest.approx(25_600, rel=0.03)
    assert "card                1.000   on paper 1.000   <- limit" in shown


# Examples for launchers


def documents(name):
    return list(yaml.safe_load_all((LAUNCHERS / name).read_text()))


@pytest.mark.parametrize("name", ["on-premise.yaml", "cloud.yaml"])
def test_launchers_read_the_cluster_files(name):
    (config,) = documents(name)
    for when in ("head_start_ray_commands", "worker_start_ray_commands"):
        (start,) = [command for command in config[when] if "ray start" in command]
        assert "RAY_AUTH_MODE=token" in start
        assert "RAY_USAGE_STATS_ENABLED=0" in start
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    pytest.importorskip("jsonschema")
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config  # noqa: PLC0415

    validate_config(config)
    filled = prepare_config(config)
    validate_config(filled)
    with pytest.raises(Exception, match="nodes_of_mine"):
        validate_config({**config, "nodes_of_mine": 3})


def test_the_kubernetes_file_has_a_token_everywhere():
    cluster, job, policy = documents("kubernetes.yaml")
    assert (cluster["kind"], cluster["spec"]["authOptions"]) == ("RayCluster", {"mode": "token"})
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    assert command[:3] == ["laser", "sweep", "--cluster"]
    assert command[3] == f"ray://{cluster['metadata']['name']}-head-svc:10001"
    environment = {one["name"]: one for one in container["env"]}
    assert environment["RAY_AUTH_MODE"]["value"] == "token"
    secret = environment["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": cluster["metadata"]["name"], "key": "auth_token"}
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    head, (worker,) = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    for group in (head, worker):
        pod = group["template"]["spec"]
        mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_slurm_script_is_a_script_with_a_token():
    path = LAUNCHERS / "slurm.sh"
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=10)
    text = path.read_text()
    assert "RAY_AUTH_MODE=token" in text
    assert 'laser sweep --cluster "$address:$port"' in text
    assert text.index("umask 077") < text.index("ray start --head")


def test_the_readme_names_every_file():
    text = (LAUNCHERS / "README.md").read_text()
    for path in LAUNCHERS.iterdir():
        assert path.name in text or path.name == "README.md"
    assert "laser sweep --cluster auto" in text
