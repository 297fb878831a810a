from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rank_pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Three processes that act as ranks; see `RankPool.run`."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps bundles of tests out of the user's cache."""
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
