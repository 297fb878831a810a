from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.rank_pool import RankPool

pytest_plugins = ["tests.time_by_file"]

# No bounds on time: the machine may be busy.
settings.register_profile("raygnn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("raygnn")


#: Folders whose files share what takes long to set up: a Ray, trained models, a device.
_TOGETHER = ("tests/integration/", "tests/numerics/infer/", "tests/pretended_gpu/")

#: Files of many short runs, which share nothing.
_APART = ("tests/numerics/test_on_gpu.py",)


class _ByFile(LoadScopeScheduling):
    """Runs the tests of a file, or of a folder of `_TOGETHER`, in one process of xdist."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        if path in _APART:
            return nodeid
        return next((folder for folder in _TOGETHER if path.startswith(folder)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return _ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files start in their order, but folders of `_TOGETHER` first, which take long in one process.

    So the small files of unit tests come last.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(_TOGETHER))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Keeps garbage collections short: each training run ends with one, which need not visit
    everything that tests import.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A terminal's SIGINT. Shells start what runs in the background with it ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _ray_at_usual_priority() -> Iterator[None]:
    """Ray's workers are 15 steps nicer than others, and hardly run on a machine that is busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Small graphs and checkpoints would wait for the disk most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors on two threads of a busy machine wait for each other most of the time."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1, "blas")


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Three processes that act as ranks; see `RankPool.run`."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps bundles of tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYGNN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(scope="session")
def small_bundle_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A graph of 300 nodes, 180 of them to train on."""
    from tests.small_runs import small_bundle

    return str(small_bundle(tmp_path_factory.mktemp("small-graph")).path)


@pytest.fixture(scope="session")
def small_tables(small_bundle_path: str) -> str:
    """URI of the tables of that graph."""
    return str(Path(small_bundle_path).parents[2] / "tables")
