"""Batches sampled in operators of a device are those of the host, here on a CPU."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from raygnn.data.bundle import SeedRows
from raygnn.data.links.supervision import (
    KnownLinks,
    KnownPositives,
    SeedEdges,
    SupervisionEdges,
)
from raygnn.data.past_labels import PastLabels
from raygnn.sampling import (
    Batch,
    LinkLoader,
    LinkPlan,
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
)
from raygnn.sampling.device_batches import Repeated, Template
from raygnn.sampling.device_padding import DevicePadding
from raygnn.sampling.device_sampler import why_not
from raygnn.sampling.device_times import why_not_in_time
from raygnn.sampling.edge_loader import EdgeLoader, EdgePlan
from raygnn.sampling.loader import RowPlan
from raygnn.sampling.sampled_sequence import SampledSequence
from raygnn.sampling.stores import find_device_columns
from raygnn.sampling.temporal import Temporal
from raygnn.sampling.tensor_record import layout_of
from tests.small_graph import EDGE, SmallGraph, random_graph

CPU = torch.device("cpu")
FOLLOWS, BUYS, SELLS = ("user", "follows", "user"), ("user", "buys", "item"), ("item", "by", "user")
NUM_SEEDS = 200


def small_graph(kind: str) -> SmallGraph:
    """With parallel edges, self-loops, hubs, nodes without edges, and a type without any."""
    rng = np.random.default_rng(0)
    if kind == "one type":
        return random_graph(500, 6000)
    sizes, edges = {"user": 500, "item": 200, "shop": 3}, {}
    for (source, name, target), number in {FOLLOWS: 4000, BUYS: 1500, SELLS: 400}.items():
        target_ids = rng.integers(0, sizes[target], number)
        target_ids[: number // 3] %= 2
        edges[source, name, target] = rng.integers(0, sizes[source], number), target_ids
    edges["shop", "near", "user"] = np.empty((2, 0), np.int64)
    return SmallGraph(sizes, edges, "int64")


def graph_in_time(kind: str, dtype: str = "int64", *, in_order: bool = True) -> SmallGraph:
    """The same with times. `in_order`: edges become visible in the order of the graph."""
    small, rng = small_graph(kind), np.random.default_rng(3)
    small.roles = {**small.roles, "time": "time"}
    first_type = next(iter(small.nodes))
    born = np.full(small.nodes[first_type], 60)
    for edge_type, (source, _) in small.edges.items():
        if edge_type != SELLS:
            times = rng.integers(0, 50, len(source))
            small.times[edge_type] = times.astype(dtype)
            if edge_type[0] == first_type:
                np.minimum.at(born, source, times)
    if kind == "several types":  # an edge of each item, from users who are later
        num_items = small.nodes["item"]
        small.edges["user", "made", "item"] = rng.integers(0, 500, num_items), np.arange(num_items)
        small.times["user", "made", "item"] = np.zeros(num_items, dtype)
    if not in_order:
        born += rng.integers(0, 50, len(born))
    small.stored.setdefault(first_type, {})["time"] = born.astype(dtype)
    return small


def make_loader(
    small: SmallGraph,
    fanouts: Sequence[int],
    *,
    names: Sequence[str] = ("x", "weight", "time"),
    sampling: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> NeighborLoader:
    """Batches of 24 of 200 seeds, which repeat. The device holds the columns with these names."""
    bundle, graph = small.bundle, LocalGraphStore(small.bundle)
    held = find_device_columns(bundle, {}, names, CPU, holds=True)
    node_type = graph.node_types[0]
    return NeighborLoader(
        graph,
        LocalFeatureStore(bundle, device_columns=held),
        node_type=node_type,
        **{
            "seeds": np.random.default_rng(1).integers(0, graph.num_nodes(node_type), NUM_SEEDS),
            **options_of(graph, fanouts, **sampling),
            "columns": {"x": "x", "y": "y"} if graph.columns(node_type) else {},
            "edge_columns": {"weight": "edge_weight"} if graph.columns(graph.edge_types[0]) else {},
            **options,
        },
    )


def make_link_loader(
    kind: str, sampling: Mapping[str, Any] = MappingProxyType({}), **options: Any
) -> LinkLoader:
    """Batches of 24 links, with random negatives, known links, relations and cold nodes."""
    is_temporal = "temporal" in sampling
    small = graph_in_time(kind) if is_temporal else small_graph(kind)
    rng = np.random.default_rng(2)
    edge_type, reverse_types = EDGE, {}
    if kind == "several types":
        edge_type, reverse_types = BUYS, {BUYS: SELLS}
        small.edges[SELLS] = np.tile(small.edges[BUYS][::-1], 2)
        if is_temporal:
            small.times[SELLS] = np.tile(small.times[BUYS], 2)
    source, target = np.unique(np.stack(small.edges[edge_type])[:, :400], axis=1)
    anchors, first = np.unique(source, return_index=True)
    indptr = np.append(first, len(source)).astype(np.int64)
    bundle, graph = small.bundle, LocalGraphStore(small.bundle)
    counts = np.bincount(source, minlength=small.nodes[edge_type[0]])
    positives = KnownPositives(np.append(0, np.cumsum(counts)), target)
    times = rng.integers(20, 60, len(source)) if is_temporal else None
    links = SupervisionEdges(*edge_type[::2], edge_type, anchors, indptr, target, times)
    if kind == "several types":
        relations = np.sort(rng.integers(0, 2, len(anchors)))
        links = replace(links, relations=relations, edge_types=(edge_type, None))
    held = find_device_columns(bundle, {}, ("x", "weight", "time"), CPU, holds=True)
    return LinkLoader(
        graph,
        LocalFeatureStore(bundle, device_columns=held),
        links,
        plan=LinkPlan(
            num_negatives=9,
            in_batch=True,
            known=KnownLinks((positives,) * 2, is_one_type=kind == "one type"),
            log_q=True,
            cold_share=0.3,
            reverse_types=reverse_types,
        ),
        **{
            **options_of(graph, [5, 3], **sampling),
            "columns": {name: name for name in graph.columns(graph.node_types[0]) if name != "y"},
            **options,
        },
    )


def make_edge_loader(
    kind: str,
    sampling: Mapping[str, Any] = MappingProxyType({}),
    *,
    sees_pair: bool = True,
    **options: Any,
) -> EdgeLoader:
    """Batches of 24 edges with features and labels."""
    is_temporal = "temporal" in sampling
    small = graph_in_time(kind) if is_temporal else small_graph(kind)
    edge_type, reverse_types, names = EDGE, {}, ["weight"]
    if kind == "several types":
        edge_type, reverse_types, names = BUYS, {BUYS: SELLS}, []
        small.edges[SELLS] = small.edges[BUYS][::-1]
    bundle, graph = small.bundle, LocalGraphStore(small.bundle)
    held = find_device_columns(bundle, {}, ("x", "weight", "time"), CPU, holds=True)
    plan = EdgePlan(
        sees_pair=sees_pair,
        edges=SeedEdges.of_bundle(bundle, edge_type, label_edges=False),
        seeds=np.random.default_rng(1).permutation(graph.num_edges(edge_type))[:NUM_SEEDS],
        reverse_types=reverse_types,
        inputs=names,
        labels={"y": np.arange(graph.num_edges(edge_type))},
        num_known=(400, 150),
    )
    return EdgeLoader(
        graph,
        LocalFeatureStore(bundle, device_columns=held),
        plan,
        **{
            **options_of(graph, [5, 3], **sampling),
            "columns": {"x": "x"} if names else {},
            "edge_columns": {"weight": "edge_weight"} if names else {},
            **options,
        },
    )


def options_of(graph: LocalGraphStore, fanouts: Sequence[int], **sampling: Any) -> dict[str, Any]:
    """Options of a loader whose batches are padded."""
    return {
        "sampler": NeighborSampler(graph, list(fanouts), **sampling),
        "batch_size": 24,
        "split": "train",
        "seed": 0,
        "shuffle": True,
        "device": CPU,
        "pads": True,
        "src_degrees": True,
    }


def check_equal(loader: SampledSequence[Any], epoch: int, batch: Batch) -> None:
    """Checks a batch against the one that a thread of the host makes."""
    expected: Batch = loader.ready_for_device(loader.make(epoch, batch.index))
    batch = loader.ready_for_device(batch)
    tensors: list[list[torch.Tensor]] = [[], []]
    for record, found in zip((expected, batch), tensors, strict=True):
        record.apply(lambda tensor, found=found: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    assert len(tensors[0]) == len(tensors[1])
    assert all(map(torch.equal, *tensors))
    assert layout_of(batch) == layout_of(expected)
    numbers = [(b.index, b.key, b.num_added_edges, b.num_edges) for b in (batch, expected)]
    assert numbers[0] == numbers[1]


def check_batches(loader: SampledSequence[Any], num_epochs: int, monkeypatch: Any) -> int:
    """Checks all batches of some epochs. Returns how many the device sampled."""
    sampled, batch_of = [], Template.batch

    def counted(self: Template[Any], *args: Any) -> Batch:
        sampled.append(self)
        return batch_of(self, *args)

    monkeypatch.setattr(Template, "batch", counted)
    assert loader.sample_on_device() is None
    for epoch in range(num_epochs):
        batches = list(loader.iterate(epoch, start=epoch))
        every = range(epoch, loader.num_batches)
        of_rank = [i for i in every if i % loader.world_size == loader.rank]
        assert [batch.index for batch in batches] == of_rank
        for batch in batches:
            check_equal(loader, epoch, batch)
    return len(sampled)


@pytest.fixture
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes loaders sample in kernels that Triton interprets."""
    if importlib.util.find_spec("triton") is None or "TRITON_INTERPRET" not in os.environ:
        pytest.skip("needs Triton, and TRITON_INTERPRET=1 before it is imported")
    monkeypatch.setattr("raygnn.sampling.device_batches.has_triton", lambda device: True)


@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize("fanouts", [[5, 3, 60], [4, 0, 3]])
def test_batches_are_those_of_a_host(monkeypatch, kind, fanouts):
    loader = make_loader(small_graph(kind), fanouts)
    assert check_batches(loader, 3, monkeypatch) >= 15


@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize("leaves", [set(), {"node", "user", "item"}])
def test_disjoint_batches_are_those_of_a_host(monkeypatch, kind, leaves):
    check_disjoint(monkeypatch, kind, leaves)


def check_disjoint(monkeypatch: Any, kind: str, leaves: set[str], num_epochs: int = 2) -> None:
    """Checks disjoint batches, some of which share leaves."""
    options = {"sampling": {"disjoint": True}, "shared_leaves": frozenset(leaves)}
    loader = make_loader(small_graph(kind), [5, 3], **options)
    assert check_batches(loader, num_epochs, monkeypatch) >= 5 * num_epochs


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize(
    ("kind", "strategy", "window", "dtypes"),
    [
        ("one type", "uniform", None, ("int64", "float64")),
        ("one type", "last", 8, ("int64", "int64")),
        ("several types", "uniform", None, ("float64", "int64")),
        ("several types", "last", None, ("float32", "float64")),
    ],
)
def test_batches_in_time_are_those_of_a_host(monkeypatch, disjoint, kind, strategy, window, dtypes):
    temporal = Temporal(strategy=strategy, window=window)
    check_in_time(monkeypatch, kind, dtypes, temporal=temporal, disjoint=disjoint)


@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_edges_in_another_order_are_those_of_a_host(monkeypatch, kind, strategy):
    options = {"temporal": Temporal(strategy=strategy), "in_order": False}
    check_in_time(monkeypatch, kind, ("int64", "int64"), **options)


def check_in_time(
    monkeypatch: Any,
    kind: str,
    dtypes: tuple[str, str],
    num_epochs: int = 2,
    *,
    in_order: bool = True,
    **sampling: Any,
) -> None:
    """Checks batches of a training table, half of whose rows see less, with past labels."""
    small, rng = graph_in_time(kind, dtypes[0], in_order=in_order), np.random.default_rng(4)
    first_type = next(iter(small.nodes))
    nodes = rng.integers(0, small.nodes[first_type], NUM_SEEDS)
    times = rng.integers(0, 70, NUM_SEEDS).astype(dtypes[1])
    rows = SeedRows("rows", first_type, NUM_SEEDS, nodes, times, None, None, {})
    past = PastLabels.of(rows, np.arange(150), rng.random((150, 2), np.float32), span=50.0)
    plan = RowPlan(rows, {"y": np.arange(NUM_SEEDS)}, as_of=60, gaps=np.array([3, 9]))
    loader = make_loader(
        small,
        [5, 3],
        sampling=sampling,
        columns={"time": "time"},
        edge_columns={"time": "time"},
        seeds=np.arange(NUM_SEEDS),
        plan=plan,
        past=(first_type, past),
        shared_leaves=frozenset({"item"}),
        src_degrees=False,
    )
    assert check_batches(loader, num_epochs, monkeypatch) >= 5 * num_epochs


@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize("make", [make_link_loader, make_edge_loader])
def test_batches_without_their_own_edges_are_those_of_a_host(monkeypatch, make, kind):
    assert check_batches(make(kind), 3, monkeypatch) >= 15


@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_links_in_time_are_those_of_a_host(monkeypatch, kind, strategy):
    sampling = {"temporal": Temporal(strategy=strategy)}
    loader = make_link_loader(kind, sampling, src_degrees=False)
    assert check_batches(loader, 3, monkeypatch) >= 10


@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize("temporal", [{}, {"temporal": Temporal(strategy="last")}])
def test_edges_with_their_own_neighborhoods_are_those_of_a_host(monkeypatch, kind, temporal):
    sampling = {"disjoint": True, **temporal}
    loader = make_edge_loader(kind, sampling, sees_pair=not temporal, src_degrees=not temporal)
    assert check_batches(loader, 3, monkeypatch) >= 10


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("kind", ["one type", "several types"])
def test_kernels_of_triton_sample_disjoint_batches(monkeypatch, kind):
    check_disjoint(monkeypatch, kind, {"node", "user"}, num_epochs=1)


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize(("disjoint", "strategy"), [(False, "uniform"), (True, "last")])
def test_kernels_of_triton_sample_in_time(monkeypatch, in_order, disjoint, strategy):
    options = {"temporal": Temporal(strategy=strategy), "disjoint": disjoint, "in_order": in_order}
    check_in_time(monkeypatch, "several types", ("int64", "float64"), 1, **options)


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("make", [make_link_loader, make_edge_loader])
def test_kernels_of_triton_skip_edges_in_time(monkeypatch, make):
    of_edges = make is make_edge_loader
    sampling = {"temporal": Temporal(strategy="last"), "disjoint": of_edges}
    options = {"sees_pair": False} if of_edges else {}
    loader = make("one type", sampling, src_degrees=False, **options)
    assert check_batches(loader, 1, monkeypatch) >= 3


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize("make", [make_link_loader, make_edge_loader])
def test_kernels_of_triton_skip_the_same_edges(monkeypatch, make, kind):
    assert check_batches(make(kind), 1, monkeypatch) >= 3


def test_the_host_makes_batches_that_exclude_more_edges_than_fit(monkeypatch):
    monkeypatch.setattr("raygnn.sampling.device_inputs._SPARE_SKIPS", -24)
    assert 3 < check_batches(make_link_loader("one type"), 3, monkeypatch) < 30


@pytest.mark.parametrize("rank", [0, 1])
def test_each_of_several_ranks_samples_its_batches(monkeypatch, rank):
    loader = make_loader(small_graph("one type"), [5, 3], rank=rank, world_size=2)
    assert check_batches(loader, 3, monkeypatch) >= 5


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("kind", ["one type", "several types"])
@pytest.mark.parametrize("fanouts", [[5, 3], [4, 0, 3]])
def test_kernels_of_triton_sample_the_same(monkeypatch, kind, fanouts):
    loader = make_loader(small_graph(kind), fanouts)
    assert check_batches(loader, 1, monkeypatch) >= 3


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("disjoint", [False, True])
def test_kernels_of_triton_flag_what_does_not_fit(monkeypatch, disjoint):
    check_overflows(monkeypatch, num_epochs=1, disjoint=disjoint)


@pytest.mark.parametrize("disjoint", [False, True])
def test_the_host_makes_batches_that_do_not_fit(monkeypatch, disjoint):
    check_overflows(monkeypatch, num_epochs=3, disjoint=disjoint)


@pytest.mark.usefixtures("_triton")
def test_kernels_of_triton_take_few_launches(monkeypatch):
    loader = make_loader(small_graph("one type"), [5, 3, 2], src_degrees=False)
    assert loader.sample_on_device() is None
    list(loader.iterate(0))
    batches = loader._device_batches
    (template, *_) = batches._templates.values()
    executor = importlib.import_module("triton.runtime.interpreter").GridExecutor
    launched, run = [], executor.__call__

    def counted(self: Any, *args: Any, **options: Any) -> None:
        launched.append(self)
        run(self, *args, **options)

    monkeypatch.setattr(executor, "__call__", counted)
    batches._sample()
    assert len(launched) == 20  # and 8 operators of torch
    template._fill()
    assert len(launched) == 25  # and 5


def check_overflows(monkeypatch: Any, num_epochs: int, **sampling: Any) -> None:
    """Checks batches of which some exceed the capacities for edges."""
    loader = make_loader(small_graph("several types"), [5, 3], sampling=sampling)
    (largest, *_) = loader._padding.sizes
    smaller = {key: [round(0.8 * n) for n in hops] for key, hops in largest.items()}
    loader._padding.sizes = [{**smaller, ("nodes", "user"): largest["nodes", "user"]}]
    assert num_epochs < check_batches(loader, num_epochs, monkeypatch) < 6 * num_epochs


def test_the_host_samples_after_a_batch_that_differs(monkeypatch, capsys):
    def wrong(self: DevicePadding, *args: Any) -> None:
        args[-1].fill_(7)

    monkeypatch.setattr(DevicePadding, "_fill_degrees", wrong)
    assert check_batches(make_loader(small_graph("one type"), [3, 2]), 2, monkeypatch) == 0
    assert capsys.readouterr().out.count("differs from that of the host") == 1


def test_a_graph_that_cannot_be_recorded_is_left_out(monkeypatch, capsys):
    def refuse() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    calls: list[int] = []
    repeated = Repeated(lambda: calls.append(1), torch.device("cpu"))
    repeated._stream, repeated._is_warm = "a stream", True
    monkeypatch.setattr(torch.cuda, "CUDAGraph", refuse)
    repeated()
    repeated()
    assert len(calls) == 2
    assert capsys.readouterr().out.count("without a CUDA graph") == 1


def test_a_loader_names_what_only_a_host_samples(monkeypatch):
    small = small_graph("one type")
    assert make_loader(small, [2], pads=False).sample_on_device() == "steps that are not recorded"
    reason = make_loader(small, [2], names=["x"]).sample_on_device()
    assert reason == "columns that the device does not hold (weight)"
    graph = LocalGraphStore(small.bundle)
    assert why_not(NeighborSampler(graph, [3, 2])) is None
    assert why_not(NeighborSampler(graph, [3, -1])) == "sampling.fanouts with -1"
    assert why_not(NeighborSampler(graph, [3], weight="weight")) == "sampling.weight='weight'"
    assert why_not(NeighborSampler(graph, [3], labor=True)) == "sampling.type='labor'"


def test_a_loader_names_times_that_only_a_host_compares():
    def reason(small: SmallGraph, *excluded: Any, window: int | None = None) -> str | None:
        temporal = Temporal(window=window)
        sampler = NeighborSampler(LocalGraphStore(small.bundle), [3], temporal=temporal)
        return why_not_in_time(sampler, excluded)

    assert reason(graph_in_time("one type"), EDGE, window=3) is None
    late, name = graph_in_time("one type", in_order=False), "node__to__node"
    assert reason(late) is None
    unordered = f"excluded edges of {name}, which are not in the order of their times"
    assert reason(late, EDGE) == unordered
    assert reason(late, window=3) == f"sampling.temporal.window and times of neighbors of {name}"
    mixed = graph_in_time("one type")
    mixed.times[EDGE] = mixed.times[EDGE].astype("float32")
    assert reason(mixed) == "times that are integers in some types and floats in others"
    missing = graph_in_time("one type", "float32")
    missing.times[EDGE][7] = np.nan
    assert reason(missing) == f"missing times of edges of {name} or of their neighbors"
    options = {"sampling": {"temporal": Temporal()}, "columns": {}, "edge_columns": {}}
    loader = make_loader(graph_in_time("one type"), [3], **options)
    assert loader.sample_on_device() == "out-degrees as of times"
