"""Sampling the neighborhoods of a training in advance."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygnn.config import LoadedConfig
from raygnn.console import Pace, count, say
from raygnn.data.bundle import Bundle
from raygnn.data.checksums import Checksum, file_checksums
from raygnn.data.filesystem import absolute, exists, files_below, is_remote, join, redact
from raygnn.data.partition.record import RECORD_NAME as PARTITION_NAME
from raygnn.data.tables.files import open_parquet
from raygnn.errors import DataError, RaygnnError, ResourceError, RunError
from raygnn.loops.model_spec import ModelSpec
from raygnn.runtime.connection import connect
from raygnn.runtime.data_checks import find_spec, with_task_defaults
from raygnn.runtime.data_source import check_source, tables_uri
from raygnn.runtime.launch import open_graph
from raygnn.runtime.ray_tasks import run_in_ray_data
from raygnn.runtime.stored_samples import Loaders, check_requests, plan_samples, sampled_loaders
from raygnn.sampling import sample_record, stored_samples
from raygnn.sampling.prefetch import map_ahead

if TYPE_CHECKING:
    from raygnn.runtime.node_bundle import BundlePlace

#: Default epochs of training: more variety does not change the result, and
#: what small epochs, as of one batch of all anchors, need.
_MOST_EPOCHS, _MOST_BATCHES = 10, 2_000


def presample(
    loaded: LoadedConfig, num_epochs: int | None = None, data: Any = None
) -> sample_record.SampleRecord:
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
    loaded = with_task_defaults(loaded, tables)
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
    bytes_of_row = {name: stored_samples.row_bytes(loader) for name, loader in loaders.items()}
    rows = {name: stored_samples.rows_per_file(size) for name, size in bytes_of_row.items()}
    uri = absolute(config.data.samples)
    plan, sizes, sums = _resumed(uri, plan_samples(config, loaders, num_epochs, rows), loaders)
    missing = [file for file in plan.files() if file.name not in sizes]
    _check_room(uri, sum(f.num_rows * bytes_of_row[f.split] for f in missing), len(sizes))
    sample_record.save_plan(uri, plan)
    if missing:
        if on_ray:
            from raygnn.runtime.node_bundle import BundlePlace

            place = BundlePlace.here(str(bundle.path), config.data.cache_dir)
            written = _write_on_ray(_Job(loaded, place, spec, uri, plan), missing)
        else:
            num_threads = len(os.sched_getaffinity(0))
            write = partial(stored_samples.write_file, uri, plan, loaders)
            written = map_ahead(lambda f: (f.name, *write(f)), missing, num_threads, num_threads)
        num_rows, num_done = {file.name: file.num_rows for file in missing}, 0
        pace = Pace("presample", sum(num_rows.values()), "batches")
        with closing(written):
            for name, size, checksum in written:
                sizes[name], sums[name] = size, checksum
                num_done += num_rows[name]
                pace.reached(num_done)
    names = [file.name for file in plan.files()]
    sizes, sums = {name: sizes[name] for name in names}, {name: sums[name] for name in names}
    record = sample_record.SampleRecord(**vars(plan), file_sizes=sizes, checksums=sums)
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
            f"data.uri={redact(uri)!r} is invalid: it is a partitioned graph. Set it to the "
            "tables, or train with data.mode: partitioned. [presample-parts]"
        )


def _resumed(
    uri: str, wanted: sample_record.SamplePlan, loaders: Loaders
) -> tuple[sample_record.SamplePlan, dict[str, int], dict[str, Checksum]]:
    """The plan, and sizes and checksums of its files. Raises a DataError for another graph."""
    stored = sample_record.load_plan(uri)
    if stored is None:
        return wanted, {}, {}
    sample_record.check_same_settings(uri, stored, wanted)
    plan = replace(
        wanted,
        splits={
            name: replace(split, rows_per_file=stored.splits[name].rows_per_file)
            for name, split in wanted.splits.items()
        },
    )
    recorded, sums = {}, {}
    if exists(join(uri, sample_record.RECORD_NAME)):
        record = sample_record.SampleRecord.load(uri)
        recorded, sums = dict(record.file_sizes), dict(record.checksums)
    there = files_below(uri)
    sizes = {
        file.name: there[file.name]
        for file in plan.files()
        if file.name in there
        and recorded.get(file.name, there[file.name]) == there[file.name]
        and (file.name in recorded or _is_whole(join(uri, file.name)))
    }
    samples = stored_samples.StoredSamples(
        uri, sample_record.SampleRecord(**vars(stored), file_sizes={}, checksums={})
    )
    for name, loader in loaders.items():
        firsts = [f for f in plan.files() if f.split == name and f.name in sizes]
        if firsts:
            first = firsts[0]
            check_requests(samples, wanted, name, loader, [(first.epoch, first.first)])
    unknown = [name for name in sizes if name not in sums]
    return plan, sizes, sums | file_checksums(uri, unknown)


def _is_whole(uri: str) -> bool:
    """Whether a file has its end: some stores show the files of failed writes."""
    try:
        with open_parquet(uri, footer_only=True):
            return True
    except DataError:
        return False


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
            f"and {free / 1e6:,.1f} MB are free. Set another, or fewer --epochs. [presample-disk]"
        )


@dataclass(frozen=True)
class _Job:
    """Settings of a sampling task, for the set in folder `uri`. Crosses process boundaries."""

    loaded: LoadedConfig
    bundle: BundlePlace
    spec: ModelSpec | None
    uri: str
    plan: sample_record.SamplePlan

    def __call__(self, file: sample_record.SampleFile) -> tuple[int, Checksum]:
        return stored_samples.write_file(self.uri, self.plan, _loaders(self), file)


#: State of this process, by the set's folder. Ray runs one task of a process at a time.
_opened: dict[str, Loaders] = {}


def _loaders(job: _Job) -> Loaders:
    if job.uri not in _opened:
        if not exists(join(job.uri, sample_record.PLAN_NAME)):
            raise DataError(
                f"--out={redact(job.uri)!r} is invalid: a node of the cluster does not see this "
                "folder. Set a bucket, or a folder that all nodes share. [presample-not-shared]"
            )
        from raygnn.runtime.node_bundle import bundle_on_this_node

        bundle = Bundle.open(bundle_on_this_node(job.bundle))
        _opened[job.uri] = sampled_loaders(job.loaded, bundle, job.spec)
    return _opened[job.uri]


def _write_on_ray(job: _Job, files: Sequence[sample_record.SampleFile]) -> stored_samples.Written:
    """Writes files on all nodes: a process for each CPU that Ray lends, which maps the graph.

    Yields name, size and checksums of each file, in no order. Raises a DataError if a node does not
    see the folder of the set, a RunError if a task failed otherwise.
    """
    for number, outcome in run_in_ray_data(job, dict(enumerate(files))):
        name = files[number].name
        if isinstance(outcome.error, RaygnnError):
            raise outcome.error
        if outcome.error is not None:
            raise RunError(
                f"presample failed while writing {name}: {outcome.error}", id="presample-failed"
            )
        yield name, *outcome.result
