"""Straight runs to compare with: made once for all tests that kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.rank_processes import run_ranks
from tests.small_runs import small_config

#: Of every straight run, and of every run that is compared with it.
Straight = Callable[[int, dict[str, Any]], Path]


@pytest.fixture(scope="session")
def straight(
    tmp_path_factory: pytest.TempPathFactory, small_tables: str
) -> Callable[[int, dict[str, Any]], Path]:
    """The folder of a run of some settings on some ranks that nobody disturbed."""
    made: dict[str, Path] = {}

    def run(world_size: int, settings: dict[str, Any]) -> Path:
        key = f"{world_size} {settings}"
        if key not in made:
            folder = tmp_path_factory.mktemp("straight")
            config = write_config(folder, small_tables, settings)
            ended = run_ranks([str(config)], world_size, folder / "ranks")
            assert ended.statuses == [0] * world_size, ended
            made[key] = folder / "run"
        return made[key]

    return run


def write_config(folder: Path, tables: str, settings: dict[str, Any], **more: Any) -> Path:
    """Writes the config of a small run under torchrun, and returns its path.

    `tables`: URI of the graph, if the settings name none.
    """
    config = small_config(folder, **{"scaling__num_workers": 0, **settings, **more})
    config.setdefault("data", {"uri": tables})
    path = folder / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config))
    return path


def arm(folder: Path) -> None:
    """Lets `Die` kill, once."""
    folder.mkdir(exist_ok=True)
    (folder / "armed").touch()
