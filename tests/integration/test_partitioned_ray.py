"""Training over Ray with an actor for each part of the graph: results, what is mapped, deaths."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import ray

import raygnn.train
from raygnn.config import load_config
from raygnn.data.cache import CACHE_VARIABLE
from raygnn.data.partition.part import Outline, open_partitioned
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.runtime import part_actors as part_actors_module
from raygnn.runtime.node_bundle import BundlePlace
from raygnn.runtime.part_actors import PartActor, part_actors
from tests.errors import raises
from tests.faults.outcome import assert_equal_outcomes
from tests.partitioned_runs import LINKS, parts_config, planted_parts
from tests.rank_pool import RankPool
from tests.small_runs import run_rank
from tests.wait_until import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("ray_session"),
]


def mapped_parts(parts: Path) -> dict[int, list[str]]:
    """The parts of which each process of this machine maps files, by process id."""
    found: dict[int, list[str]] = {}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:  # the process has ended
            continue
        numbers = re.findall(rf"{re.escape(str(parts))}/part-(\d+)/(?:edges|nodes)", text)
        if numbers:
            found[int(maps.parent.name)] = sorted(set(numbers))
    return found


def mapped_caches(cache: str) -> dict[str, list[int]]:
    """Which processes of this machine map rows of other nodes, by the file in a cache folder."""
    found: dict[str, list[int]] = {}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # the process has ended
            for path in set(re.findall(rf"{re.escape(cache)}.*-hot/.*/rows/.*", maps.read_text())):
                found.setdefault(path, []).append(int(maps.parent.name))
    return found


class Look(Callback):
    """Notes at a step of rank 0 what each process maps, and what is logged, with who maps `cache`.

    Ends the owner of a part if asked.
    """

    def __init__(self, parts: str, note: str, cache: str, kills: str | None = None) -> None:
        self._parts, self._note = Path(parts), Path(note)
        self._cache, self._kills = cache, kills

    def on_train_step_start(self, engine: Engine) -> None:
        if engine.context.rank == 0 and not self._note.exists():
            found = mapped_parts(self._parts)
            self._note.write_text(json.dumps({**found, "worker": os.getpid()}))
            for process, numbers in found.items():
                if numbers == [self._kills]:
                    os.kill(process, signal.SIGKILL)

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        if engine.context.rank == 0:
            logged = {**metrics, "cached_by": mapped_caches(self._cache)}
            self._note.with_suffix(".log").write_text(json.dumps(logged))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_parts(tmp_path_factory.mktemp("graph"), 2)


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers take no actor to be on their node, as in a cluster of several."""
    client = part_actors_module._PartClient
    monkeypatch.setattr(
        part_actors_module, "_PartClient", lambda *fields: client(*fields[:-1], "elsewhere")
    )


def _run(
    parts: Path,
    folder: Path,
    num_workers: int,
    changes: Mapping[str, Any] = MappingProxyType({}),
    kills: str | None = None,
) -> dict[str, Any]:
    note = folder / "note"
    cache = os.environ[CACHE_VARIABLE]
    args = {"parts": str(parts), "note": str(note), "cache": cache, "kills": kills}
    config = parts_config(
        folder / "parted",
        parts,
        scaling__num_workers=num_workers,
        callbacks=[{"type": "tests.integration.test_partitioned_ray.Look", "args": args}],
        **changes,
    )
    raygnn.train.fit(config, allow_modules=["tests"])
    noted: dict[str, Any] = json.loads(note.read_text())
    return noted


def _logged(folder: Path) -> dict[str, Any]:
    logged: dict[str, Any] = json.loads((folder / "note.log").read_text())
    return logged


def _traffic(folder: Path) -> list[float]:
    """Requests, bytes and cached rows of a step, as loggers get them."""
    names = ("part_requests", "part_bytes", "cached_rows")
    return [_logged(folder)[f"perf/{name}"] for name in names]


def _assert_as_in_memory(
    parts: Path,
    folder: Path,
    num_workers: int,
    ranks: RankPool,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    plain = parts_config(folder / "whole", parts, scaling__num_workers=num_workers, **changes)
    ranks.run(run_rank, num_workers, plain, str(open_partitioned(parts).path))
    assert_equal_outcomes(folder / "parted" / "run", folder / "whole" / "run")


def test_workers_map_the_parts_of_their_node(ranks: RankPool, parts: Path, tmp_path: Path) -> None:
    noted = _run(parts, tmp_path, 1, LINKS)
    assert noted[str(noted.pop("worker"))] == ["00000", "00001"]
    assert _traffic(tmp_path) == [0, 0, 0]
    assert not _logged(tmp_path)["cached_by"]
    assert str(os.getpid()) not in noted
    assert sorted(noted.values()) == [["00000"], ["00000", "00001"], ["00001"]]
    _assert_as_in_memory(parts, tmp_path, 1, ranks, LINKS)


@pytest.mark.usefixtures("_elsewhere")
def test_workers_get_the_bits_of_memory_and_map_no_part_of_another_node(
    ranks: RankPool, parts: Path, tmp_path: Path
) -> None:
    noted = _run(parts, tmp_path, 2)
    worker = noted.pop("worker")
    assert str(worker) not in noted
    assert str(os.getpid()) not in noted
    assert sorted(noted.values()) == [["00000"], ["00001"]]
    requests, num_bytes, cached = _traffic(tmp_path)
    assert requests >= 3  # of two hops and degrees
    assert num_bytes > 8 * requests
    assert cached > 0
    (mappers,) = _logged(tmp_path)["cached_by"].values()
    assert len(mappers) == 2
    assert worker in mappers
    _assert_as_in_memory(parts, tmp_path, 2, ranks)
    wait_until(lambda: not mapped_parts(parts), limit_s=30)  # the actors end with the run


@pytest.mark.usefixtures("_elsewhere")
def test_a_part_that_is_killed_comes_back_and_no_step_is_lost(
    ranks: RankPool, parts: Path, tmp_path: Path
) -> None:
    noted = _run(parts, tmp_path, 2, LINKS, kills="00001")
    del noted["worker"]
    assert sorted(noted.values()) == [["00000"], ["00001"]]
    metrics = json.loads((tmp_path / "parted" / "run" / "metrics.json").read_text())
    assert metrics["restarts"] == 0  # of workers
    _assert_as_in_memory(parts, tmp_path, 2, ranks, LINKS)


def test_a_part_that_does_not_answer_is_named(parts: Path, tmp_path: Path) -> None:
    loaded = load_config(parts_config(tmp_path, parts, scaling__timeout_s=120))
    outline = Outline.build(parts, tmp_path / "cache")
    with part_actors(outline, loaded.config) as graph:
        edge_type = outline.edge_types[0]
        (owner,) = [p for p, numbers in mapped_parts(parts).items() if numbers == ["00001"]]
        os.kill(owner, signal.SIGSTOP)
        try:
            asked = [service.ask("count_sources", edge_type) for service in graph.services]
            counts = asked[0].result()
            with raises("partition-slow", "Part 1", "3 s"):
                dataclasses.replace(asked[1], timeout_s=3).result()
        finally:
            os.kill(owner, signal.SIGCONT)
        counts = counts + asked[1].result()
        assert counts.sum() == outline.num_edges(edge_type)
    wait_until(lambda: not mapped_parts(parts), limit_s=30)  # the actors end
    with raises("partition-lost", "Part 1"):
        graph.services[1].ask("count_sources", edge_type).result()


def test_a_node_that_does_not_see_the_folder_is_named(parts: Path, tmp_path: Path) -> None:
    outline = Outline.build(parts, tmp_path / "cache")
    place = BundlePlace.here(str(outline.path), None)
    actor = ray.remote(num_cpus=0)(PartActor).remote(tmp_path / "elsewhere", 1, place)
    with raises("partition-not-shared", tmp_path / "elsewhere", "part 1"):
        ray.get(actor.node.remote())
    ray.kill(actor)


def test_a_damaged_part_is_refused_before_a_worker_starts(parts: Path, tmp_path: Path) -> None:
    """By its actor, as the record says nothing of what is in a file."""
    damaged = tmp_path / "parts"
    shutil.copytree(parts, damaged)
    (indices,) = damaged.glob("part-00001/edges/*/indices.npy")
    indices.write_bytes(indices.read_bytes()[:-4] + b"\xff\xff\xff\x7f")
    with raises("partition-damaged", "part-00001"):
        raygnn.train.fit(parts_config(tmp_path, damaged, scaling__num_workers=1))
    wait_until(lambda: not mapped_parts(damaged), limit_s=30)
