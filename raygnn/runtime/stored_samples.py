"""Compares the stored neighborhoods that a config needs with those of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from raygnn.config import Config, LoadedConfig, build
from raygnn.console import count, say
from raygnn.data.bundle import Bundle
from raygnn.data.filesystem import redact
from raygnn.data.pagerank_graph import neighborhood_graph
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.task import Task, TaskEnvironment
from raygnn.sampling import sample_record
from raygnn.sampling.sampled_sequence import SampledSequence
from raygnn.sampling.stored_samples import StoredSamples

Loaders = Mapping[str, SampledSequence]


def sampled_loaders(loaded: LoadedConfig, bundle: Bundle, spec: ModelSpec | None) -> Loaders:
    graph, cpu = neighborhood_graph(loaded.config, bundle), torch.device("cpu")
    task: Task = build(loaded.config.task, "task", loaded.allow_modules)
    task.setup(TaskEnvironment(loaded, graph, 0, 1, cpu, spec))
    names = ("train",) if loaded.config.training.eval == "exact" else ("train", "val", "test")
    loaders = {name: task.loader(name) for name in names}
    by_split = {}
    for name, loader in loaders.items():
        if loader is not None:
            assert isinstance(loader, SampledSequence)
            by_split[name] = loader
    return by_split


def plan_samples(
    config: Config, loaders: Loaders, num_epochs: int, rows_per_file: Mapping[str, int]
) -> sample_record.SamplePlan:
    layout = sample_record.RowLayout.of_sampler(loaders["train"].sampler)
    splits = {
        name: sample_record.SplitPlan(
            loader.num_batches,
            num_epochs if name == "train" else 1,
            rows_per_file[name],
            loader.sample_settings,
        )
        for name, loader in loaders.items()
    }
    return sample_record.SamplePlan(layout, splits, _keys_of_requests(config))


def open_samples(loaded: LoadedConfig, bundle: Bundle, spec: ModelSpec | None) -> StoredSamples:
    """Opens and checks the set of `data.samples`.

    For a user's own model or loss, which only workers import, settings and requests are checked
    when a worker reads its first batch. Raises a DataError if it is missing, interrupted, damaged,
    or of another graph, config or version.
    """
    config = loaded.config
    assert config.data.samples is not None
    samples = StoredSamples.open(config.data.samples)
    samples.record.check_files(samples.uri)
    stored = samples.record
    if spec is not None:
        loaders = sampled_loaders(loaded, bundle, spec)
        wanted = plan_samples(config, loaders, 1, dict.fromkeys(loaders, 1))
        sample_record.check_same_settings(samples.uri, stored, wanted)
        for name, loader in loaders.items():
            check_requests(samples, wanted, name, loader, [(0, 0), (0, loader.num_batches - 1)])
    split, limit = stored.splits["train"], config.training.max_epochs
    repeats = limit is None or limit > split.num_epochs
    say(
        f"neighborhoods of {count(split.num_epochs, 'epoch')} of "
        f"{split.num_batches:,} batches from {redact(samples.uri)}"
        + ("; later epochs repeat them in another order" if repeats else "")
    )
    return samples


def check_requests(
    samples: StoredSamples,
    wanted: sample_record.SamplePlan,
    split: str,
    loader: SampledSequence,
    batches: Sequence[tuple[int, int]],
) -> None:
    """Raises a DataError if requests of some batches (epoch, number) differ from stored ones."""
    stored = samples.of_split(split, loader.seed)
    assert stored is not None
    for batch in batches:
        digest = loader.request(*batch).digest(loader.sampler.fingerprint)
        if stored.row(*batch)["request"] != digest:
            raise sample_record.other_requests(samples.uri, split, samples.record, wanted)


def _keys_of_requests(config: Config) -> dict[str, Any]:
    content = config.model_dump(mode="json")
    sections = {
        "task.args": content["task"]["args"],
        "loader": content["loader"],
        "data.splits": content["data"]["splits"] or {},
    }
    keys = {f"{name}.{key}": value for name, of in sections.items() for key, value in of.items()}
    return {"task.type": config.task.type, "model.type": config.model.type, **keys}
