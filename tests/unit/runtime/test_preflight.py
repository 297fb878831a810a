"""Which resources workers get, and what is said where they have no place; without a cluster."""

from __future__ import annotations

import time

import pytest
import ray

from raygnn.config import load_config
from raygnn.runtime import preflight
from raygnn.runtime.preflight import (
    count_fitting_runs,
    missing_places,
    plan_resources,
    warn_of_missing_places,
)
from tests.errors import raises


@pytest.fixture
def nodes(monkeypatch):
    """The resources of the cluster's nodes; to be changed by tests."""
    resources: list[dict[str, float]] = [{"CPU": 4.0}]
    monkeypatch.setattr(
        ray, "nodes", lambda: [{"Alive": True, "Resources": dict(node)} for node in resources]
    )
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1e3, "GPU": 1e3})
    return resources


def _config(**scaling):
    return load_config({"scaling": scaling}).config


def test_cpus_are_shared_out_and_gpus_taken_where_there_are_enough(nodes):
    assert plan_resources(_config(num_workers=2)).cpus == 2
    assert plan_resources(_config(num_workers=1)).cpus == 4
    assert plan_resources(_config(num_workers=1), num_runs=4).cpus == 1
    assert plan_resources(_config(num_workers=[1, 4])).cpus == 1
    nodes.append({"CPU": 64.0})
    assert plan_resources(_config(num_workers=2)).cpus == 8
    nodes.pop()
    assert not plan_resources(_config(num_workers=2)).use_gpu
    nodes[0]["GPU"] = 2
    assert plan_resources(_config(num_workers=2)).use_gpu
    assert not plan_resources(_config(num_workers=2, use_gpu=False)).use_gpu
    assert not plan_resources(_config(num_workers=3)).use_gpu


def test_too_few_places_are_told(nodes):
    with raises("cluster-no-room", "num_workers=5", 4):
        plan_resources(_config(num_workers=5))
    with raises("cluster-no-room", "num_workers=[5, 8]"):
        plan_resources(_config(num_workers=[5, 8]))
    with raises("cluster-no-room"):
        plan_resources(_config(use_gpu=True))
    with raises("sweep-no-room", 3, 2):
        plan_resources(_config(num_workers=2), num_runs=3)
    assert count_fitting_runs(_config(num_workers=2)) == 2
    assert plan_resources(_config(num_workers=[2, 8])).cpus == 1


def test_what_other_work_holds_is_told(nodes, monkeypatch, capsys):
    plan_resources(_config(num_workers=2))
    assert not capsys.readouterr().out
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1.0})
    plan_resources(_config(num_workers=2))
    assert (
        "other work uses resources that the workers need: CPU 1 of 4 is free"
        in capsys.readouterr().out
    )
    plan_resources(_config(num_workers=1), num_runs=2)  # of a sweep: its own trials come and go
    assert not capsys.readouterr().out


def test_an_autoscaler_is_asked_and_waited_for(nodes, monkeypatch, capsys):
    requests = []
    monkeypatch.setattr(
        preflight, "request_resources", lambda bundles, **selectors: requests.append(bundles)
    )
    monkeypatch.setattr(preflight.time, "sleep", lambda _: nodes.append({"CPU": 2.0}))
    nodes.clear()
    config = _config(num_workers=3, cpus_per_worker=2, wait_for_nodes_s=60)
    assert plan_resources(config).cpus == 2
    assert len(nodes) == 3
    assert requests == [[{"CPU": 2.0}] * 3, []]  # asked once, and taken back
    assert "waiting up to 60 s" in capsys.readouterr().out
    monkeypatch.setattr(preflight.time, "sleep", lambda _: None)
    with raises("cluster-no-room", 6):  # the wait has an end
        plan_resources(_config(num_workers=7, wait_for_nodes_s=0.05))


def test_nodes_that_go_while_a_run_lasts_are_told_once(nodes, monkeypatch, capsys):
    monkeypatch.setattr(preflight, "_LOOK_FOR_PLACES_EVERY_S", 0.01)
    config = _config(num_workers=3)
    resources = plan_resources(config)
    told, end_s = "", time.monotonic() + 60
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1.0})  # the run has the others
    with warn_of_missing_places(config, resources):
        time.sleep(0.1)
        assert not capsys.readouterr().out
        nodes[0]["CPU"] = 2.0
        while not told and time.monotonic() < end_s:
            time.sleep(0.05)
            told += capsys.readouterr().out
        time.sleep(0.1)
    told += capsys.readouterr().out
    assert told.splitlines() == [
        "[raygnn] This cluster of 1 node has room for 2 of the 3 workers that are needed. "
        "The run continues when nodes are added."
    ]
    nodes.append({"CPU": 1.0})
    assert missing_places(config, resources) is None
