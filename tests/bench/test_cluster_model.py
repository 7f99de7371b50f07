"""The simulation of a cluster against cases whose answer is known."""

import dataclasses
import random

import pytest

from rlrun.bench.cluster_model import ClusterFacts, Direction, Loop, SharedCores, simulate

FAST = ClusterFacts(
    nodes=2, cores=8, samplers=4, rows=20, columns=5, fragments=4, slots=2, calls_ahead=2, answer=1, step_sec=1e-3, pack_sec=1e-6,
    unpack_sec=1e-6, update_sec=1e-3, put_sec=1e-4, call_sec=1e-4, load_sec=1e-4, step_bytes=100.0, weights_bytes=1e5,
    bandwidth=1e9, head_bandwidth=1e9, broadcast=1, latency_sec=1e-4, gpu=False, shared=False,
)  # fmt: skip


def changed(**other) -> ClusterFacts:
    return dataclasses.replace(FAST, **other)


def arrivals(count, rate, seed=0):
    rng, at = random.Random(seed), 0.0
    for _ in range(count):
        at += rng.expovariate(rate)
        yield at


def test_one_server_makes_its_queue_wait_as_pollaczek_and_khinchine_say():
    """Poisson arrivals and equal sizes: the mean wait is load * service / (2 (1 - load))."""
    network, waits = Direction(100.0), []
    for now in arrivals(40_000, rate=0.7):
        start = max(now, network.free)
        waits.append(start - now)
        network.take(100.0, start)
    assert sum(waits) / len(waits) == pytest.approx(0.7 / (2 * 0.3), rel=0.08)


@pytest.mark.parametrize("cores", [1, 2])
def test_cores_are_shared_evenly(cores):
    """One core: with Poisson arrivals, the mean time of a task is service / (1 - load). Two cores: three tasks at once share them."""
    loop, times = Loop(), []
    shared = SharedCores(loop, cores)
    if cores == 2:
        for seconds in (2.0, 2.0, 4.0):
            shared.work(seconds, lambda: times.append(loop.now))
        loop.run(100.0)
        assert times == pytest.approx([3.0, 3.0, 5.0])
        return
    for at in arrivals(20_000, rate=0.5):
        loop.at(at, lambda at=at: shared.work(1.0, lambda: times.append(loop.now - at)))
    loop.run(1e6)
    assert len(times) == 20_000 and sum(times) / len(times) == pytest.approx(2.0, rel=0.08)


@pytest.mark.parametrize(
    ("facts", "speed", "narrowest"),
    [
        # every sampler has a core of its own and never waits
        (FAST, 2 * 4 / 1e-3, "samplers"),
        # 16 samplers share 8 cores
        (changed(samplers=8, cores=4, nodes=1, pack_sec=0, unpack_sec=0, update_sec=0, put_sec=0, call_sec=0, load_sec=0), 4 / 1e-3, "samplers"),
        # an update of 400 env steps takes 0.2 s, 4 x 2 ms of unpacking and 0.1 ms to publish; calls come beside it
        (changed(update_sec=0.2, unpack_sec=2e-5, call_sec=0.0), 400 / (0.2 + 400 * 2e-5 + 1e-4), "learner"),
        # all fragments but those of the learner's own machine come through its network
        (changed(nodes=5, head_bandwidth=1e5, weights_bytes=10.0, step_sec=1e-4, samplers=1, cores=4, gpu=True), None, "network into the learner's machine"),
        # a host packs what all of its samplers have filled, one fragment after the other
        (changed(pack_sec=1e-3), 2 / 1e-3, "packing on the nodes"),
    ],
)  # fmt: skip
def test_the_narrowest_place_decides(facts, speed, narrowest):
    found = simulate(facts)
    assert found.narrowest == narrowest, found
    if speed is not None:
        assert found.steps_per_sec == pytest.approx(speed, rel=0.03)
    else:  # 1,000 env steps/s fit through the network, and the learner's own sampler has no network between
        assert found.steps_per_sec == pytest.approx(1e5 / 100.0 + 1e4, rel=0.05)


def test_weights_go_on_from_those_that_have_them():
    """16 machines want 1 MB in every update of 20 ms. One network of 400 MB/s cannot carry 800 MB/s, and theirs together can."""
    wide = changed(nodes=16, weights_bytes=1e6, update_sec=0.02, bandwidth=4e8, head_bandwidth=4e8, step_sec=1e-4, gpu=True)
    found = simulate(wide)
    assert found.narrowest == "learner" and found.busy["network out of the learner's machine"] < 0.8
    assert found.steps_per_sec == pytest.approx(400 / (0.02 + 400 * 1e-6 + 1e-4 + 4e-4), rel=0.05)


def test_weights_that_are_published_less_often_travel_less_often():
    wide = changed(nodes=3, weights_bytes=1e6, update_sec=0.02, bandwidth=2e7, head_bandwidth=1e9, step_sec=1e-4, gpu=True)
    every, tenth = simulate(wide), simulate(dataclasses.replace(wide, broadcast=10))
    assert every.narrowest == "network of the nodes" and tenth.narrowest == "learner" and tenth.lag > every.lag / 2
    assert tenth.steps_per_sec > 1.05 * every.steps_per_sec


def test_rows_are_older_where_more_of_them_wait():
    near, far = (simulate(changed(update_sec=0.05, slots=slots, nodes=nodes)).lag for nodes, slots in ((2, 2), (8, 4)))
    assert 1 < near < far


def test_simulated_nodes_share_one_machine():
    """Two halves of a machine do what the machine does."""
    one = simulate(changed(nodes=1, samplers=4, cores=2, shared=True)).steps_per_sec
    two = simulate(changed(nodes=2, samplers=2, cores=2, shared=True)).steps_per_sec
    assert two == pytest.approx(one, rel=0.05)
