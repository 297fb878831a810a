"""Rules between a sweep and the config that it varies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raygnn.config import tree
from raygnn.config.problems import KeyPath, Problem, choose_from, dotted
from raygnn.config.section import Section, sections_in

if TYPE_CHECKING:
    from raygnn.config.schema import Config

_FIXED = ("run", "tune", "job_name", "loggers", "profiler")


def broken_space(config: Config) -> Iterable[Problem]:
    """Paths of the space that no config has, or that must be the same in all trials."""
    if config.tune is None:
        return
    for name in config.tune.space:
        place, path = ("tune", "space", name), tree.parse_path(name)
        if path[0] in _FIXED:
            yield Problem(
                place,
                f"{path[0]} belongs to the sweep, not to its trials",
                "Take it out of the space",
            )
        elif wrong := _unknown_key(path, type(config)):
            where, keys = wrong
            yield Problem(
                place,
                f"there is no key {where}",
                choose_from(where.rpartition(".")[2], keys, "Keys there"),
            )


def trials_need_workers(config: Config) -> Iterable[Problem]:
    """A trial reports to the scheduler through Ray Train."""
    if config.tune is not None and config.scaling.max_workers == 0:
        yield Problem(
            ("scaling", "num_workers"),
            "each trial of a sweep trains in workers of Ray Train",
            "Set 1 or more",
        )


def _unknown_key(path: KeyPath, root: type[Section]) -> tuple[str, list[str]] | None:
    """The first part of a path that no section there has, as a path, and what they have."""
    sections: list[type[Section]] = [root]
    for depth, part in enumerate(path):
        if not sections:
            return None  # below here is free: arguments of a component, or a plain value
        if isinstance(part, int):
            continue
        fields = [s.model_fields[part] for s in sections if part in s.model_fields]
        if not fields:
            known = [name for section in sections for name in section.model_fields]
            return dotted(path[: depth + 1]), list(dict.fromkeys(known))
        sections = [inner for field in fields for inner in sections_in(field.annotation)]
    return None
