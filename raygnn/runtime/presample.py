"""Neighborhoods that are sampled before training: written, and compared with a config's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from raygnn.config import Config, LoadedConfig, build
from raygnn.console import Pace, count, say
from raygnn.data.bundle import Bundle
from raygnn.data.checksums import Checksum, file_checksums
from raygnn.data.filesystem import absolute, exists, files_below, is_remote, join, redact
from raygnn.data.pagerank_graph import neighborhood_graph
from raygnn.data.partition.record import RECORD_NAME as PARTITION_NAME
from raygnn.errors import DataError, ResourceError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.task import Task, TaskEnvironment
from raygnn.runtime.connection import connect
from raygnn.runtime.data_checks import find_spec, with_time_defaults
from raygnn.runtime.data_source import check_source, tables_uri
from raygnn.runtime.launch import open_graph
from raygnn.sampling.batch_sequence import SampledSequence
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.prefetch import map_ahead
from raygnn.sampling.sample_record import (
    RECORD_NAME,
    RowLayout,
    SampleFile,
    SamplePlan,
    SampleRecord,
    SplitPlan,
    check_same_settings,
    load_plan,
    other_requests,
    save_plan,
)
from raygnn.sampling.stored_samples import (
    StoredSamples,
    Written,
    row_bytes,
    rows_per_file,
    write_file,
)

#: Of training, unless the command says how many epochs: what more variety does not change, and
#: what small epochs, as of one batch of all anchors, need.
_MOST_EPOCHS, _MOST_BATCHES = 10, 2_000

Loaders = Mapping[str, SampledSequence]


def presample(
    loaded: LoadedConfig, num_epochs: int | None = None, data: Any = None
) -> SampleRecord:
    """Fills `data.samples` with the neighborhoods of a training's batches.

    Existing files are kept: an interrupted set resumes, and a set grows by epochs.

    Args:
        num_epochs: default: the config's, but at most 10, or for small epochs as many as give 2,000
            batches.
        data: `GraphTables`, or a PyG `Data` or `HeteroData`, instead of the config's source.
    Raises:
        DataError: the graph is partitioned; the folder has samples of another graph or config; or a
            node does not see it.
        ResourceError: the samples do not fit on the disk.
    """
    check_source(loaded, data)
    tables = None if data is None else tables_uri(loaded, data)
    loaded = with_time_defaults(loaded, tables)
    config = loaded.config
    assert config.data.samples is not None
    _check_tables(config.data.uri)
    on_ray = config.scaling.max_workers > 0
    if on_ray:
        connect(loaded.check_arguments)
    else:
        loaded.check_arguments()
    bundle = open_graph(loaded, tables, on_cluster=on_ray)
    spec = find_spec(loaded, bundle)
    loaders = sampled_loaders(loaded, bundle, spec)
    if num_epochs is None:
        most = max(_MOST_EPOCHS, _MOST_BATCHES // loaders["train"].num_batches)
        num_epochs = min(config.training.max_epochs or most, most)
    bytes_of_row = {name: row_bytes(loader) for name, loader in loaders.items()}
    rows = {name: rows_per_file(size) for name, size in bytes_of_row.items()}
    uri = absolute(config.data.samples)
    plan, sizes, sums = _resumed(uri, plan_samples(config, loaders, num_epochs, rows), loaders)
    missing = [file for file in plan.files() if file.name not in sizes]
    _check_room(uri, sum(f.num_rows * bytes_of_row[f.split] for f in missing), len(sizes))
    save_plan(uri, plan)
    if missing:
        if on_ray:
            from raygnn.runtime.presample_on_ray import PresampleJob, write_on_ray

            job = PresampleJob.here(loaded, bundle, spec, uri, plan)
            written = write_on_ray(job, missing)
        else:
            written = _write_in_threads(uri, plan, loaders, missing)
        num_rows, num_done = {file.name: file.num_rows for file in missing}, 0
        pace = Pace("presample", sum(num_rows.values()), "batches")
        with closing(written):
            for name, size, checksum in written:
                sizes[name], sums[name] = size, checksum
                num_done += num_rows[name]
                pace.reached(num_done)
    names = [file.name for file in plan.files()]
    record = SampleRecord(plan, {n: sizes[n] for n in names}, {n: sums[n] for n in names})
    record.save(uri)
    num_batches = sum(file.num_rows for file in plan.files())
    say(
        f"presample: {num_batches:,} batches in {count(len(record.file_sizes), 'file')}, "
        f"{sum(record.file_sizes.values()) / 1e6:,.1f} MB: {redact(uri)}"
    )
    return record


def _check_tables(uri: str | None) -> None:
    if uri is not None and exists(join(uri, PARTITION_NAME)):
        raise DataError(
            f"data.uri={redact(uri)!r} is invalid: it is a partitioned graph, and presampling "
            "draws from a graph in memory. Set it to the tables of the graph, or train with "
            "data.mode: partitioned.",
            id="presample-parts",
        )


def _resumed(
    uri: str, wanted: SamplePlan, loaders: Loaders
) -> tuple[SamplePlan, dict[str, int], dict[str, Checksum]]:
    """The plan, and sizes and checksums of its files. Raises a DataError for another graph."""
    stored = load_plan(uri)
    if stored is None:
        return wanted, {}, {}
    check_same_settings(uri, stored, wanted)
    plan = replace(
        wanted,
        splits={
            name: replace(split, rows_per_file=stored.splits[name].rows_per_file)
            for name, split in wanted.splits.items()
        },
    )
    recorded, sums = {}, {}
    if exists(join(uri, RECORD_NAME)):
        record = SampleRecord.load(uri)
        recorded, sums = dict(record.file_sizes), dict(record.checksums)
    there = files_below(uri)
    sizes = {
        file.name: there[file.name]
        for file in plan.files()
        if file.name in there and recorded.get(file.name, there[file.name]) == there[file.name]
    }
    samples = StoredSamples(uri, SampleRecord(stored, {}))
    for name, loader in loaders.items():
        firsts = [f for f in plan.files() if f.split == name and f.name in sizes]
        if firsts:
            first = firsts[0]
            check_requests(samples, wanted, name, loader, [(first.epoch, first.first)])
    unknown = [name for name in sizes if name not in sums]
    return plan, sizes, sums | file_checksums(uri, unknown)


def _check_room(uri: str, num_bytes: int, num_whole: int) -> None:
    existing = f", beside {count(num_whole, 'file')} that are there already" if num_whole else ""
    say(f"presample: about {num_bytes / 1e6:,.1f} MB to write{existing}")
    if is_remote(uri):
        return
    folder = Path(uri)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise ResourceError(
            f"--out={uri!r} is invalid: the neighborhoods take about {num_bytes / 1e6:,.1f} MB, "
            f"and {free / 1e6:,.1f} MB are free there. Set another folder, or fewer --epochs.",
            id="presample-disk",
        )


def _write_in_threads(
    uri: str, plan: SamplePlan, loaders: Loaders, files: Sequence[SampleFile]
) -> Written:
    num_threads = len(os.sched_getaffinity(0))
    write = partial(write_file, uri, plan, loaders)
    return map_ahead(lambda file: (file.name, *write(file)), files, num_threads, num_threads)


def sampled_loaders(loaded: LoadedConfig, bundle: Bundle, spec: ModelSpec | None) -> Loaders:
    graph, cpu = neighborhood_graph(loaded.config, bundle), torch.device("cpu")
    task: Task = build(loaded.config.task, "task", loaded.allow_modules)
    task.setup(TaskEnvironment(loaded, graph, 0, 1, cpu, spec))
    names = ("train",) if loaded.config.training.eval == "exact" else ("train", "val", "test")
    by_split = {}
    for name in names:
        loader = task.loader(name)
        if loader is not None:
            assert isinstance(loader, SampledSequence)
            by_split[name] = loader
    return by_split


def plan_samples(
    config: Config, loaders: Loaders, num_epochs: int, rows_per_file: Mapping[str, int]
) -> SamplePlan:
    sampler = loaders["train"].sampler
    assert isinstance(sampler, NeighborSampler)
    layout = RowLayout.of_sampler(sampler)
    splits = {
        name: SplitPlan(
            loader.num_batches,
            num_epochs if name == "train" else 1,
            rows_per_file[name],
            loader.sample_settings,
        )
        for name, loader in loaders.items()
    }
    return SamplePlan(layout, splits, _keys_of_requests(config))


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
    stored = samples.record.plan
    if spec is not None:
        loaders = sampled_loaders(loaded, bundle, spec)
        wanted = plan_samples(config, loaders, 1, dict.fromkeys(loaders, 1))
        check_same_settings(samples.uri, stored, wanted)
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
    wanted: SamplePlan,
    split: str,
    loader: SampledSequence,
    batches: Sequence[tuple[int, int]],
) -> None:
    """Raises a DataError if requests of some batches (epoch, number) differ from stored ones."""
    stored = samples.of_split(split, loader.seed)
    assert stored is not None
    assert isinstance(loader.sampler, NeighborSampler)
    for batch in batches:
        digest = loader.request(*batch).digest(loader.sampler.fingerprint)
        if stored.row(*batch)["request"] != digest:
            raise other_requests(samples.uri, split, samples.record.plan, wanted)


def _keys_of_requests(config: Config) -> dict[str, Any]:
    content = config.model_dump(mode="json")
    sections = {
        "task.args": content["task"]["args"],
        "loader": content["loader"],
        "data.splits": content["data"]["splits"] or {},
    }
    keys = {f"{name}.{key}": value for name, of in sections.items() for key, value in of.items()}
    return {"task.type": config.task.type, "model.type": config.model.type, **keys}
