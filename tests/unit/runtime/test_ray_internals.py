"""What is taken of Ray beside its public interface is there, in one room, for one version."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import ray

import raygnn
from raygnn.config import load_config
from raygnn.errors import PreemptedError
from raygnn.job import TrainJob
from raygnn.runtime import preflight, ray_train
from raygnn.runtime.ray_internals import TESTED_RAY, attribute, internal
from tests.errors import raises

FILES = sorted(Path(raygnn.__file__).parent.glob("runtime/**/*.py"))


def _asked() -> set[tuple[str, str]]:
    calls = [
        n for f in FILES for n in ast.walk(ast.parse(f.read_text())) if isinstance(n, ast.Call)
    ]
    return {
        tuple(argument.value for argument in call.args)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "internal"
    }


def test_this_ray_is_the_tested_one():
    """Due with a newer Ray: look at each place that `_asked` names, then raise `TESTED_RAY`."""
    assert ray.__version__.startswith(f"{TESTED_RAY}.")


def test_this_ray_has_what_is_asked_of_it():
    asked = _asked()
    assert len(asked) >= 3
    for module, name in asked:
        assert internal(module, name) is not None
    from ray.tune import ResultGrid

    assert "_experiment_analysis" in ResultGrid.__init__.__code__.co_names


def test_private_modules_of_ray_are_imported_nowhere_else():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                private = any(part.startswith("_") for part in name.split("."))
                assert not (name.startswith("ray.") and private), f"{file.name}: {name}"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: internal("ray._no_such_module", "x"),
        lambda: internal("ray._private.ray_logging", "no_such_name"),
        lambda: attribute(object(), "_experiment_analysis"),
    ],
)
def test_another_ray_is_refused_with_a_sentence(ask):
    with raises("cluster-ray-version", ray.__version__, "ray==2.60.*"):
        ask()


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("spot", True), ("!spot", False), ("in(a, spot)", True), ("!in(a,b)", True), ("a", False)],
)
def test_labels_of_nodes_fit_a_selector(wanted, fits):
    assert preflight._fits({"market": "spot"}, {"market": wanted}) == fits


@pytest.mark.parametrize(("limit", "starts"), [(0, 1), (2, 3)])
def test_preemptions_are_bounded(monkeypatch, tmp_path, limit, starts):
    class NoRequests:
        def __enter__(self):
            return None

        def __exit__(self, *error):
            return None

    calls = []

    def preempted(*args, **kwargs):
        calls.append(1)
        raise PreemptedError("gone", ray_train.NODE_PREEMPTION)

    class Folder:
        uri = str(tmp_path)
        check_is_held = None

    monkeypatch.setattr(ray_train, "stop_requests", NoRequests)
    monkeypatch.setattr(ray_train, "run_on_workers", preempted)
    loaded = load_config({"scaling": {"max_preemptions": limit}})
    with raises("run-preempted", starts, limit):
        ray_train.train_on_ray(TrainJob(loaded, Folder(), str(tmp_path)), None)
    assert len(calls) == starts
