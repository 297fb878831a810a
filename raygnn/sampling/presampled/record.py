"""`samples.json`: content and settings of a folder of stored neighborhoods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from raygnn.data.checksums import (
    Checksum,
    cause_of,
    dump_record,
    find_damage,
    parse_record,
    read_listing,
    type_adapter,
)
from raygnn.data.filesystem import exists, join, read_bytes, redact, write_text
from raygnn.errors import DataError
from raygnn.sampling.presampled.rows import RowLayout
from raygnn.sampling.rng import RNG_VERSION

RECORD_NAME, PLAN_NAME = "samples.json", "plan.json"
_FORMAT, FORMAT_VERSION = "raygnn/samples", 1
_AGAIN = "run raygnn presample with this config and another --out, and set data.samples to it."


@dataclass(frozen=True)
class SampleFile:
    """A file of consecutive micro-batches of an epoch, each a row group of one row."""

    split: str
    epoch: int
    first: int
    last: int

    @property
    def num_rows(self) -> int:
        return self.last - self.first

    @property
    def name(self) -> str:
        return f"{self.split}/epoch-{self.epoch:05d}/{self.first:09d}.parquet"


@dataclass(frozen=True)
class SplitPlan:
    """The stored samples of a split.

    Attributes:
        num_epochs: 1 for evaluation splits, whose batches never change.
        rows_per_file: micro-batches per file; the last one of an epoch may have fewer.
        settings: settings that determine neighborhoods besides requests, by name.
    """

    num_batches: int
    num_epochs: int
    rows_per_file: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class SamplePlan:
    """The planned content of a set of stored neighborhoods.

    Attributes:
        config: config keys that determine requests, for messages.
    """

    layout: RowLayout
    splits: Mapping[str, SplitPlan]
    config: Mapping[str, Any]
    rng_version: int = RNG_VERSION

    def files(self) -> Iterator[SampleFile]:
        for name, split in self.splits.items():
            for epoch in range(split.num_epochs):
                for first in range(0, split.num_batches, split.rows_per_file):
                    last = min(first + split.rows_per_file, split.num_batches)
                    yield SampleFile(name, epoch, first, last)

    def file_of(self, split: str, epoch: int, index: int) -> SampleFile:
        plan = self.splits[split]
        first = index - index % plan.rows_per_file
        return SampleFile(split, epoch, first, min(first + plan.rows_per_file, plan.num_batches))

    def content(self) -> dict[str, Any]:
        return {"format": _FORMAT, "version": FORMAT_VERSION, **asdict(self)}


@dataclass(frozen=True)
class SampleRecord:
    """A complete set.

    Attributes:
        file_sizes: bytes of every file by name.
        checksums: of these files; empty in sets of older versions.
    """

    plan: SamplePlan
    file_sizes: Mapping[str, int] = field(repr=False)
    checksums: Mapping[str, Checksum] = field(default_factory=dict, repr=False)

    def save(self, uri: str) -> None:
        """Writes samples.json, which completes the set."""
        files = {"file_sizes": dict(self.file_sizes), "checksums": dict(self.checksums)}
        write_text(join(uri, RECORD_NAME), dump_record({**self.plan.content(), **files}))

    @classmethod
    def load(cls, uri: str) -> SampleRecord:
        """Reads samples.json. Raises a DataError if it is missing, damaged or too new."""
        if not exists(join(uri, RECORD_NAME)):
            begun = exists(join(uri, PLAN_NAME))
            what = "was interrupted" if begun else f"has no {RECORD_NAME}"
            remedy = "Run the same raygnn presample again, which resumes it."
            raise DataError(
                f"data.samples={redact(uri)!r} is invalid: the set of neighborhoods {what}. "
                + (remedy if begun else "Set a folder that raygnn presample has finished."),
                id="samples-interrupted" if begun else "samples-missing",
            )
        content = _read(uri, RECORD_NAME)
        plan = _plan(content, uri)
        try:
            return cls(plan, *read_listing(content))
        except (KeyError, ValueError) as error:
            raise _damaged(uri, RECORD_NAME, error) from error

    def check_files(self, uri: str) -> None:
        """Raises a DataError if a file is missing, or has a wrong size or, on a disk, end."""
        if damage := find_damage(uri, self.file_sizes, self.checksums):
            raise DataError(
                f"data.samples={redact(uri)!r} is invalid: {damage}. Remove the file, if it is "
                "there, and run the same raygnn presample again, which writes it again.",
                id="samples-damaged",
            )


def save_plan(uri: str, plan: SamplePlan) -> None:
    write_text(join(uri, PLAN_NAME), dump_record(plan.content()))


def load_plan(uri: str) -> SamplePlan | None:
    """The plan of a started or complete set, if any. Raises a DataError if it is damaged."""
    return _plan(_read(uri, PLAN_NAME), uri) if exists(join(uri, PLAN_NAME)) else None


def check_same_settings(uri: str, stored: SamplePlan, wanted: SamplePlan) -> None:
    """Raises a DataError if a split is missing in a set, or was sampled with other settings."""
    start = f"data.samples={redact(uri)!r} is invalid: "
    if stored.rng_version != wanted.rng_version:
        raise DataError(
            f"{start}its draws are of rng_version {stored.rng_version}, those of this raygnn of "
            f"{wanted.rng_version}. To sample again, {_AGAIN}",
            id="samples-version",
        )
    for name, split in wanted.splits.items():
        have = stored.splits.get(name)
        if have is None:
            raise DataError(
                f"{start}it has no neighborhoods of split {name!r}, only of "
                f"{sorted(stored.splits)}. To sample again, {_AGAIN}",
                id="samples-split",
            )
        for key, value in split.settings.items():
            if have.settings.get(key) == value:
                continue
            if key == "graph":
                why = _changes(stored, wanted) or "the tables of data.uri differ"
                raise DataError(
                    f"{start}in split {name!r} it was sampled from another graph: {why}. Set these "
                    f"back, or {_AGAIN}",
                    id="samples-graph",
                )
            in_config = _key_of(key, name)
            raise DataError(
                f"{start}it was sampled with {in_config}={have.settings.get(key)!r} in split "
                f"{name!r}, and the config has {value!r}. Set {in_config} back, or {_AGAIN}",
                id="samples-settings",
            )
        if have.num_batches != split.num_batches:
            raise _other_requests(start, name, stored, wanted)


def other_requests(uri: str, split: str, stored: SamplePlan, wanted: SamplePlan) -> DataError:
    """The error of a set whose batches have other seeds, negatives or excluded edges."""
    return _other_requests(f"data.samples={redact(uri)!r} is invalid: ", split, stored, wanted)


def _other_requests(start: str, split: str, stored: SamplePlan, wanted: SamplePlan) -> DataError:
    why = _changes(stored, wanted) or "task, loader or data.splits differ"
    return DataError(
        f"{start}batches of split {split!r} have other seeds, negatives or excluded edges: {why}. "
        f"Set these back, or {_AGAIN}",
        id="samples-requests",
    )


def _changes(stored: SamplePlan, wanted: SamplePlan) -> str:
    return "; ".join(
        f"{key} was {stored.config.get(key)!r} and is {value!r}"
        for key, value in wanted.config.items()
        if stored.config.get(key) != value
    )


def _key_of(setting: str, split: str) -> str:
    if setting == "batch_size":
        return "loader.batch_size" if split == "train" else "loader.eval_batch_size"
    return setting


def _read(uri: str, name: str) -> dict[str, Any]:
    try:
        content = parse_record(read_bytes(join(uri, name)))
    except ValueError as error:
        raise _damaged(uri, name, error) from error
    if content.get("format") != _FORMAT or content.get("version") != FORMAT_VERSION:
        raise DataError(
            f"data.samples={redact(uri)!r} is invalid: it has format {content.get('format')!r} "
            f"version {content.get('version')!r}; this raygnn reads {_FORMAT!r} version "
            f"{FORMAT_VERSION}. {_AGAIN}",
            id="samples-version",
        )
    return content


def _plan(content: Mapping[str, Any], uri: str) -> SamplePlan:
    try:
        plan: SamplePlan = type_adapter(SamplePlan).validate_python(content)
        return plan
    except ValueError as error:
        raise _damaged(uri, RECORD_NAME, error) from error


def _damaged(uri: str, name: str, error: Exception) -> DataError:
    return DataError(
        f"data.samples={redact(uri)!r} is invalid: {name} is damaged: "
        f"{cause_of(error)}. Remove the folder, and run raygnn presample again.",
        id="samples-record-damaged",
    )
