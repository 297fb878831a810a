"""The config of several tasks: what each has of its own, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from raygnn.config import load_config
from tests.errors import raises

TASKS: dict[str, Any] = {
    "topic": {"type": "node_classification", "args": {"target": "paper"}},
    "cites": {
        "type": "link_prediction",
        "weight": 0.5,
        "losses": [{"type": "margin"}],
        "metrics": ["mrr"],
        "sampling": {"fanouts": [3, 2], "weight": "w"},
        "loader": {"batch_size": 64},
        "splits": {"type": "temporal"},
    },
}


def _load(**changes: Any) -> Any:
    return load_config({"tasks": TASKS, **changes}).config


def test_each_task_has_a_config_of_its_own():
    config = _load(
        data={"splits": {"type": "hash"}},
        model={"type": "HGT", "args": {"hidden_channels": 16}},
        task={"args": {"feature": "words"}},
        loader={"batch_size": 128, "eval_batch_size": 300},
        training={"global_batch_size": 256},
        early_stopping={"monitor": "val/cites/mrr", "mode": "max"},
    )
    assert config.task.type == "several_tasks"
    topic, cites = config.task_configs.values()
    assert config.single_tasks == [topic, cites]
    assert topic.task.args == {"feature": "words", "target": "paper"}
    assert topic.loader_plan("train").batch_size == 128
    assert topic.data.splits == config.data.splits
    assert (cites.sampling.fanouts, cites.sampling.weight) == ([3, 2], "w")
    assert cites.loader_plan("train").batch_size == 64
    assert cites.loader_plan("val").batch_size == 300
    assert cites.data.splits.type == "temporal"
    assert [loss.type for loss in cites.losses] == ["margin"]
    assert cites.early_stopping.monitor == "val/mrr"
    assert topic.early_stopping.monitor == "val/cites/mrr"  # of no metric of the topic
    for own in (topic, cites):
        assert (own.tasks, own.model.args["out_channels"]) == ({}, 16)


def test_a_config_without_tasks_is_that_of_one_task():
    config = load_config({"task": "link_prediction"})
    assert config.config.tasks == {}
    assert config.config.single_tasks == [config.config]
    assert (
        config.fingerprint() == load_config({"task": "link_prediction", "tasks": {}}).fingerprint()
    )
    other = load_config({"tasks": TASKS}).fingerprint()
    assert other != load_config({"tasks": {"topic": TASKS["topic"]}}).fingerprint()


def test_a_saved_config_loads_again():
    loaded = load_config({"tasks": TASKS})
    assert load_config(loaded.saved_yaml()).config == loaded.config


def test_a_task_that_is_a_name_alone_takes_overrides():
    given = {"tasks": {"topic": "node_classification", "cites": "link_prediction"}}
    overrides = ["--tasks.cites.weight", "0", "--tasks.topic.args.target", "paper"]
    tasks = load_config(given, overrides).config.tasks
    assert (tasks["cites"].type, tasks["cites"].weight) == ("link_prediction", 0)
    assert tasks["topic"].args == {"target": "paper"}


def _with(name: str, **changes: Any) -> dict[str, Any]:
    return {**TASKS, name: {**TASKS[name], **changes}}


@pytest.mark.parametrize(
    ("id", "changes", "values"),
    [
        ("tasks-none", {"tasks": {}, "task": "several_tasks"}, ()),
        ("tasks-and-task", {"task": "link_prediction"}, ("link_prediction",)),
        ("tasks-no-weight", {"tasks": {"a": {"type": "link_prediction", "weight": 0.0}}}, ()),
        ("tasks-name", {"tasks": {"a/b": "link_prediction"}}, ("a/b",)),
        ("tasks-name", {"tasks": {"loss": "link_prediction"}}, ("loss",)),
        ("tasks-own-key", {"losses": [{"type": "mse"}]}, ("tasks.topic.losses",)),
        ("tasks-own-key", {"metrics": ["mrr"]}, ("tasks.topic.metrics",)),
        ("tasks-full-graph", {"sampling": {"type": "full"}}, ("full",)),
        ("tasks-loss-reduction", {"training": {"loss_reduction": "sum"}}, ("sum",)),
        ("tasks-type", {"tasks": _with("topic", type="torch.nn.Linear")}, ("torch.nn.Linear",)),
        ("tasks-type", {"tasks": _with("topic", type="several_tasks")}, ("several_tasks",)),
        ("tasks-input", {"tasks": _with("topic", args={"feature": "z"})}, ("task.args.feature",)),
        ("tasks-hops", {"tasks": _with("topic", sampling={"fanouts": [3]})}, (2,)),
        (
            "tasks-edge-types",
            {
                "sampling": {"fanouts": {"a__x__b": [3, 3], "a__y__b": [0, 0]}},
                "tasks": _with("topic", sampling={"fanouts": {"a__y__b": [1, 1]}}),
            },
            ("a__y__b",),
        ),
        ("partition-task", {"data": {"mode": "partitioned", "uri": "parts"}}, ("tasks=",)),
        ("config-range", {"tasks": _with("topic", weight=-1.0)}, (-1.0,)),
        (
            "component-unknown",
            {"tasks": {"cites": "link"}},
            ("tasks.cites.type", "link_prediction"),
        ),
        ("config-type", {"tasks": {"cites": None}}, ("self_supervised, or a dotted",)),
        ("component-unknown", {"tasks": _with("cites", losses=[{"type": "mrgin"}])}, ("margin",)),
    ],
)
def test_what_cannot_be_is_refused(id, changes, values):
    with raises(id, *values):
        _load(**changes)


def test_names_are_those_of_one_task_each():
    text = "tasks:\n  a: link_prediction\n  a: node_classification\n"
    with raises("document-key-twice", "a"):
        load_config(text)


@pytest.mark.parametrize("monitor", ["val/nobody/mrr", "val/topic/mrr", "val/mrr"])
def test_a_monitor_is_a_metric_of_a_task(monitor):
    loaded = load_config({"tasks": TASKS, "early_stopping": {"monitor": monitor, "mode": "max"}})
    with raises("monitor-unknown", monitor, "val/cites/mrr"):
        loaded.check_arguments()


@pytest.mark.parametrize(
    "monitor", ["val/loss", "val/cites/mrr", "val/topic/loss", "val/topic/f1_macro"]
)
def test_monitors_of_tasks(monitor):
    load_config(
        {"tasks": TASKS, "early_stopping": {"monitor": monitor, "mode": "max"}}
    ).check_arguments()


def test_arguments_are_checked_where_they_are_given():
    loaded = load_config({"tasks": _with("cites", metrics=["accuracy"])})
    with raises("metric-problem", "tasks.cites.metrics.0"):
        loaded.check_arguments()
    loaded = load_config({"tasks": _with("cites", args={"nothing": 1})})
    with raises("task-argument-unknown", "tasks.cites.args.nothing"):
        loaded.check_arguments()
