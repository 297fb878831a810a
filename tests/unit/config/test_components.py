"""Dotted paths and the building of components: what may be reached, and with which arguments."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygnn.config import Component, ConfigError, build, resolve
from raygnn.config.components import broken_component_rules
from raygnn.config.imports import import_dotted
from raygnn.config.registry import SLOTS
from raygnn.documents import parse_yaml
from raygnn.errors import RuleError, dotted
from tests.errors import error_cases, raises

USER_CODE = """
import os
from os import system
from torch import nn
from torch.nn import Linear
from torch_geometric.data import Data

class Net(nn.Module):
    def __init__(self, in_channels, width=3):
        super().__init__()
        self.in_channels, self.width = in_channels, width

class Greedy(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.kwargs = kwargs

class Wider(Net):
    def __init__(self, extra=1, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra

class Broken(nn.Module):
    def __init__(self):
        raise ValueError("a bug of the user's")

class Factory:
    def __init__(self, size=1):
        self.size = size

def make(size=2):
    return Data(num_nodes=size)

class Outer:
    class Inner(nn.Module):
        pass

limit = 3
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current directory, which is not on sys.path."""
    package = tmp_path / "their_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("from their_pkg.code import Net\n")
    (package / "code.py").write_text(USER_CODE)
    (package / "torn.py").write_text("import their_pkg.gone\n")
    (package / "needy.py").write_text("import no_such_dependency_of_theirs\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    yield "their_pkg"
    for name in [n for n in sys.modules if n.partition(".")[0] == "their_pkg"]:
        del sys.modules[name]


def _module(width: int = 2) -> list[nn.Parameter]:
    return list(nn.Linear(width, width).parameters())


@pytest.mark.parametrize(
    "path",
    [
        "torch.os.system",
        "torch.hub.load",
        "torch.load",
        "torch.nn.modules.module.os.system",
        "torch.nn.modules.module.os",
        "torch.nn",
        "torch.serialization.pickle.Unpickler",
        "torch.serialization.os.PathLike",
        "torch.package.package_importer.importlib.import_module",
        "torch.nn.Module.load_state_dict",
        "torch.nn.Linear.forward",
        "torch.float32",
        "torch_geometric.torch.nn.Linear",
        "torch_geometric.data.torch.load",
        "raygnn.errors.Sequence",
        "raygnn.config.loading.os.system",
        "raygnn.config.load_config",
    ],
)
def test_what_is_no_class_of_a_library_is_refused(path: str) -> None:
    with pytest.raises(RuleError):
        import_dotted(path, (), takes_functions=True)
    with pytest.raises(ConfigError) as caught:
        build(Component(type="GCN", args={"activation": {"__type": path}}), "model", in_channels=1)
    assert str(caught.value.id).startswith("component-")


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("os.system", "outside of what this job may import"),
        ("builtins.eval", "outside of what this job may import"),
        ("torchy.nn.Linear", "outside of what this job may import"),
        ("torch.nn.Linear.__init__.__globals__", "private names"),
        ("torch._C.Generator", "private names"),
        ("torch..nn", "not a dotted path"),
        ("torch.nn.", "not a dotted path"),
        ("torch.nn.Linear()", "not a dotted path"),
        ("torch.nn.Linnear", "torch.nn has no Linnear"),
        ("torch.os.system", r"classes of torch\.os may unpickle files"),
        ("torch.hub.load", r"classes of torch\.hub may unpickle files"),
        ("torch.seed", "it is a function"),
        ("torch.nn", "not a class defined in torch"),
    ],
)
def test_the_reason_is_told(path: str, rule: str) -> None:
    with pytest.raises(RuleError, match=rule):
        import_dotted(path, (), takes_functions=True)


def test_a_near_miss_gets_a_hint() -> None:
    with raises("component-missing", "Did you mean AdamW"):
        resolve("torch.optim.AdamWw", "optimizer")


@pytest.mark.parametrize("path", ["torch.optim.SGD", "torch_geometric.nn.Aggregation.mro"])
def test_nested_objects_of_libraries_are_modules_transforms_or_metrics(path: str) -> None:
    with raises("component-kind"):
        build(Component(type="GCN", args={"activation": {"__type": path}}), "model", in_channels=1)


@pytest.mark.parametrize(
    "path",
    [
        "torch.package.PackageImporter",
        "torch.package.package_importer.PackageImporter",
        "torch.storage.UntypedStorage",
        "torch.utils.benchmark.Timer",
        "torch.fx.GraphModule",
        "torch.jit.ScriptModule",
        "torch_geometric.nn.Sequential",
        "torch_geometric.llm.models.LLM",
        "torch_geometric.datasets.Planetoid",
        "torch_geometric.datasets.planetoid.Planetoid",
        "torch_geometric.data.InMemoryDataset",
        "torch_geometric.data.OnDiskDataset",
        "torch_geometric.datasets.Planetoid.__mro__",
        "torchmetrics.multimodal.CLIPScore",
    ],
)
def test_classes_that_run_or_load_code_are_out_of_reach(path: str) -> None:
    expected = "component-private" if "__" in path else "component-not-allowed"
    for slot in ("model", "metric", "dataset"):
        with raises(expected):
            resolve(path, slot)
    with raises(expected):
        build(Component(type="GCN", args={"activation": {"__type": path}}), "model", in_channels=1)


def test_a_signature_that_is_code_does_not_run(tmp_path: Path) -> None:
    code = f"x: __import__('pathlib').Path('{tmp_path}/ran').touch()"
    args = {"input_args": code, "modules": [{"__type": "torch.nn.ReLU"}]}
    with raises("component-not-allowed"):
        build(Component(type="torch_geometric.nn.Sequential", args=args), "model")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
optimizer torch.nn.Linear
    component-kind | Linear | torch.optim.Optimizer
model torch.optim.SGD
    component-kind | SGD | torch.nn.Module
lr_scheduler torch.optim.SGD
    component-kind | torch.optim.lr_scheduler.LRScheduler
metric torch.nn.Linear
    component-kind | raygnn.metrics.Metric or torchmetrics.Metric
loss torch.optim.SGD
    component-kind | SGD | torch.nn.Module
dataset torch.nn.Linear
    component-kind | torch_geometric.data.Dataset or
callback raygnn.loops.task.Task
    component-kind | raygnn.loops.callbacks.Callback
init_env torch.seed
    component-kind | init_env='torch.seed' | a function
hook torch.nn.Linear
    component-kind
model GNC
    component-unknown | model.type='GNC' | Did you mean
"""
    ),
)
def test_the_slot_says_what_fits(text: str, message: tuple[str, ...]) -> None:
    slot, path = text.split()
    with raises(*message):
        resolve(path, slot)


@pytest.mark.parametrize(
    ("slot", "name"), [(slot, name) for slot, spec in SLOTS.items() for name in spec.names]
)
def test_every_short_name_leads_to_a_class_of_its_slot(slot: str, name: str) -> None:
    found = resolve(name, slot)
    assert isinstance(found, type)


def test_short_names_of_optimizers_are_those_of_torch() -> None:
    left_out = {"LBFGS", "Muon", "Optimizer"}
    known = {n for n, c in vars(torch.optim).items() if isinstance(c, type)}
    assert set(SLOTS["optimizer"].names) == known - left_out


def test_classes_of_the_libraries() -> None:
    assert resolve("torch.optim.AdamW", "optimizer") is torch.optim.AdamW
    assert resolve("torch.nn.modules.linear.Linear", "model") is nn.Linear
    assert resolve("torchmetrics.Accuracy", "metric").__name__ == "Accuracy"


def test_data_sets_of_pyg_are_allowed_by_name() -> None:
    allowed = ["torch_geometric.datasets"]
    found = resolve("torch_geometric.datasets.Planetoid", "dataset", allowed)
    assert isinstance(found, type)
    assert found.__name__ == "Planetoid"
    with raises("component-not-allowed", "Add --allow-module torch_geometric.datasets"):
        resolve("torch_geometric.datasets.Planetoid", "dataset", ["torch_geometric.nn"])
    component = Component(type="torch_geometric.datasets.Planetoid", args={"rot": "x"})
    with raises("component-argument-unknown", "data.args.rot='x'"):
        build(component, "dataset", allowed)  # not an error of the user's own code
    with raises("component-not-allowed", "torch_geometric.data"):
        resolve("torch_geometric.data.OnDiskDataset", "dataset", allowed)


class TestUserModules:
    def test_a_class_in_the_current_directory(self, user_module: str) -> None:
        net = build(
            Component(type="their_pkg.Net", args={"width": 5}),
            "model",
            [user_module],
            in_channels=7,
        )
        assert (net.in_channels, net.width) == (7, 5)

    def test_nothing_without_permission(self, user_module: str) -> None:
        with raises("component-not-allowed", "Add --allow-module their_pkg"):
            resolve("their_pkg.Net", "model")
        assert user_module not in sys.modules

    def test_permission_for_one_module_of_a_package(self, user_module: str) -> None:
        allowed = [f"{user_module}.code"]
        assert resolve("their_pkg.code.Net", "model", allowed)
        with raises("component-not-allowed"):
            resolve("their_pkg.Net", "model", allowed)

    def test_a_nested_class(self, user_module: str) -> None:
        assert resolve("their_pkg.code.Outer.Inner", "model", [user_module])

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("their_pkg.code.Linear", ("component-kind", "their_pkg")),
            ("their_pkg.code.os.PathLike", ("component-kind", "their_pkg")),
            ("their_pkg.code.system", ("component-kind", "their_pkg")),
            ("their_pkg.code.limit", ("component-kind", "their_pkg")),
            ("their_pkg.code", ("component-kind", "their_pkg")),
            (
                "their_pkg.code.Ned",
                ("component-missing", "their_pkg.code", "Ned", "Did you mean Net?"),
            ),
            ("their_pkg.cod.Net", ("component-missing", "their_pkg", "cod")),
            ("their_pkg.code.Factory", ("component-kind", "Factory", "torch.nn.Module")),
            ("their_pkg.code.make", ("component-kind",)),
            (
                "their_pkg.needy.Net",
                ("component-import", "Install no_such_dependency_of_theirs on every node"),
            ),
            ("their_pkg.torn.Net", ("component-import", "No module named 'their_pkg.gone'")),
            ("their_pkg.code.Net.__init__", ("component-private",)),
        ],
    )
    def test_only_what_is_defined_there(self, user_module: str, path: str, message: str) -> None:
        with raises(*message):
            resolve(path, "model", [user_module])

    def test_a_foreign_function_is_no_function_of_theirs(self, user_module: str) -> None:
        Path("their_pkg/borrowed.py").write_text("from json import dumps\n")
        importlib.invalidate_caches()
        with raises("component-not-allowed", "json", "their_pkg"):
            resolve("their_pkg.borrowed.dumps", "init_env", [user_module])

    def test_a_module_that_is_not_there(self, user_module: str) -> None:
        with raises("component-module-missing", "nowhere_to_be_found"):
            resolve("nowhere_to_be_found.Net", "model", ["nowhere_to_be_found"])

    def test_factories_of_data(self, user_module: str) -> None:
        made = build(Component(type="their_pkg.code.make"), "dataset", [user_module])
        assert made.num_nodes == 2
        factory = Component(type="their_pkg.code.Factory", args={"size": 4})
        assert build(factory, "dataset", [user_module]).size == 4

    def test_functions_where_functions_go(self, user_module: str) -> None:
        assert resolve("their_pkg.code.make", "init_env", [user_module])().num_nodes == 2

    def test_injected_arguments_go_where_there_is_a_parameter(self, user_module: str) -> None:
        net = build(
            Component(type="their_pkg.Net"), "model", [user_module], in_channels=7, out_channels=2
        )
        assert net.in_channels == 7
        greedy = build(
            Component(type="their_pkg.code.Greedy", args={"a": 1}), "model", [user_module], b=2
        )
        assert greedy.kwargs == {"a": 1}
        wider = Component(type="their_pkg.code.Wider", args={"extra": 4})
        net = build(wider, "model", [user_module], in_channels=7, out_channels=2)
        assert (net.in_channels, net.extra) == (7, 4)

    def test_a_bug_of_theirs_keeps_its_traceback(self, user_module: str) -> None:
        with pytest.raises(ValueError, match="a bug of the user's"):
            build(Component(type="their_pkg.code.Broken"), "model", [user_module])

    def test_nested_user_objects(self, user_module: str) -> None:
        args = {"width": [{"__type": "their_pkg.code.make", "size": 9}]}
        net = build(
            Component(type="their_pkg.Net", args=args), "model", [user_module], in_channels=1
        )
        assert net.width[0].num_nodes == 9


def test_build_an_optimizer_and_a_scheduler() -> None:
    optimizer = build(
        Component(type="SGD", args={"lr": 0.5, "momentum": 0.9}), "optimizer", params=_module()
    )
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    scheduler = build(
        Component(type="StepLR", args={"step_size": 2}), "lr_scheduler", optimizer=optimizer
    )
    assert scheduler.step_size == 2


def test_a_metric_of_torchmetrics_gets_what_it_takes() -> None:
    args = {"task": "multiclass", "num_classes": 3}
    metric = build(
        Component(type="torchmetrics.Accuracy", args=args),
        "metric",
        num_outputs=3,
        problem="multi_class",
    )
    assert metric.num_classes == 3


def test_nested_types_and_values() -> None:
    args: dict[str, Any] = {
        "in_features": {"__value_type": "int", "value": "3"},
        "out_features": 2,
        "bias": {"__value_type": "bool", "value": "False"},
        "dtype": {"__value_type": "null", "value": "null"},
    }
    linear = build(Component(type="torch.nn.Linear", args=args), "model")
    assert linear.weight.shape == (2, 3)
    assert linear.bias is None
    distance = {"__type": "torch.nn.PairwiseDistance", "p": 1.0}
    loss = build(
        Component(
            type="torch.nn.TripletMarginWithDistanceLoss", args={"distance_function": distance}
        ),
        "model",
    )
    assert isinstance(loss.distance_function, nn.PairwiseDistance)
    assert loss.distance_function.norm == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
optimizer: {type: Adam, args: {lrr: 0.1}}
    component-argument-unknown | optimizer.args.lrr=0.1 | Did you mean lr? Adam takes | lr, betas
optimizer: {type: SGD, args: {params: []}}
    component-argument-set | optimizer.args.params=[]
model: {type: GCN, args: {out_channels: 3}}
    component-argument-set | model.args.out_channels=3
lr_scheduler: {type: StepLR}
    component-argument-missing | lr_scheduler.args.step_size | StepLR
model: {type: torch.nn.ReLU, args: {x: {__type: torch.nn.ELU, a: 1}}}
    component-argument-unknown | model.args.x.a=1 | torch.nn.ELU | takes | alpha
model: {type: torch.nn.ReLU, args: {api_key: hunter2}}
    component-argument-unknown | model.args.api_key='***'
model: {type: GraphSAGE, args: {agr: max}}
    component-argument-unknown | model.args.agr='max' | Did you mean aggr
model: {type: GAT, args: {num_head: 2}}
    component-argument-unknown | model.args.num_head=2 | Did you mean num_heads
model: {type: GINE}
    component-argument-missing | model.args.edge_dim | GINE
"""
    ),
)
def test_arguments_that_do_not_fit(text: str, message: tuple[str, ...]) -> None:
    ((slot, component),) = parse_yaml(text).value.items()
    set_by_raygnn = {
        "optimizer": {"params": 1},
        "lr_scheduler": {"optimizer": 1},
        "model": {"in_channels": 2, "out_channels": 3},
    }
    with raises(*message):
        build(Component(**component), slot, **set_by_raygnn[slot])


def test_all_wrong_arguments_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        build(Component(type="StepLR", args={"a": 1, "b": 2}), "lr_scheduler", optimizer=1)
    assert len(caught.value.problems) == 3


def test_values_that_a_class_refuses() -> None:
    with raises("component-refuses-arguments", "Adam", -1, "lr"):
        build(Component(type="Adam", args={"lr": -1}), "optimizer", params=_module())


def test_rules_of_a_component_are_checked_without_imports() -> None:
    component = Component(type="nope.Net", args={"in_channels": 3, "a": {"__type": "os.system"}})

    def broken(*allow_modules: str) -> list[str]:
        found = broken_component_rules(component, "model", ("model",), allow_modules)
        return [dotted(problem.path) for problem in found]

    assert broken() == ["model.type", "model.args.in_channels", "model.args.a.__type"]
    assert broken("nope", "os") == ["model.args.in_channels"]


def test_no_module_of_the_libraries_hides_a_loader_behind_a_base_class() -> None:
    """The classes that a slot of base nn.Module reaches in torch's top packages are modules."""
    for info in pkgutil.iter_modules(torch.nn.modules.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"torch.nn.modules.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, type) and not issubclass(value, nn.Module):
                path = f"torch.nn.modules.{info.name}.{name}"
                with pytest.raises(ConfigError):
                    resolve(path, "model")
