"""A compiled model trains as an eager one; a machine without a compiler is told so."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from raygnn.config import load_config
from raygnn.loops.optimization import Optimization, compile_module
from raygnn.models.segment import Adjacency, segment_sum_and_rows
from tests.errors import raises
from tests.small_runs import run_rank, small_config, trained_weights


@pytest.mark.parametrize(
    ("device", "variable", "value", "message"),
    [
        ("cpu", "CXX", None, ("training-no-compiler", "g++")),
        ("cpu", "CXX", "my-c++ -O2", ("training-no-compiler", "my-c++", "CXX")),
        ("cuda", "CC", None, ("training-no-compiler", "CC")),
    ],
)
def test_a_missing_compiler_is_named(monkeypatch, device, variable, value, message):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    with raises(*message):
        compile_module(nn.Linear(1, 1), torch.device(device))


def test_a_config_compiles_the_model_and_its_weights_keep_their_names(monkeypatch):
    compiled: list[dict] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: compiled.append(options))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    loaded = load_config({"training": {"compile": True}})
    parts = Optimization(nn.Linear(2, 1), loaded, torch.device("cpu"))
    assert compiled == [{"dynamic": True}]
    assert set(parts.state_dict()["model"]) == {"weight", "bias"}


@pytest.mark.filterwarnings("ignore")  # what torch says of its own way to trace
def test_functions_over_edges_are_not_traced(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    graphs: list[str] = []

    def backend(graph, inputs):
        graphs.append(str(graph.graph))
        return graph.forward

    class Layer(nn.Module):
        def forward(self, x: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
            sums, rows = segment_sum_and_rows(x.relu(), adjacency)
            return (sums + rows).sigmoid()

    compile_module(Layer(), torch.device("cpu"))
    compiled = torch.compile(Layer(), backend=backend, dynamic=True)
    for num_edges in (3, 4):
        dst = torch.arange(num_edges) // 2
        ptr = torch.searchsorted(dst, torch.arange(int(dst[-1]) + 2))
        adjacency = Adjacency(torch.arange(num_edges), dst, ptr, num_edges)
        x, y = (torch.linspace(-1, 1, num_edges).unsqueeze(1).requires_grad_() for _ in range(2))
        out, expected = compiled(x, adjacency), Layer()(y, adjacency)
        assert torch.equal(out, expected)
        out.sum().backward()
        expected.sum().backward()
        assert torch.equal(x.grad, y.grad)
    traced = "".join(graphs)
    assert "relu" in traced
    assert "sigmoid" in traced
    assert "embedding_bag" not in traced


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what torch says of its own way to trace
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_run_equals_an_eager_one(small_bundle_path, tmp_path):
    """Batches have other numbers of nodes and edges each: shapes are dynamic."""
    runs, args = {}, {"hidden_channels": 8}
    for compiled in (False, True):
        config = small_config(
            tmp_path / str(compiled),
            scaling__num_workers=0,
            training={"max_epochs": 2, "compile": compiled},
            model={"type": "GraphSAGE", "args": {**args, "norm": "batch", "residual": True}},
        )
        runs[compiled] = (run_rank(config, small_bundle_path), trained_weights(config))
    (eager, expected), (metrics, weights) = runs[False], runs[True]
    assert any(name.endswith("running_var") for name in weights)
    assert metrics["val/loss"] == pytest.approx(eager["val/loss"], rel=1e-4)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)
