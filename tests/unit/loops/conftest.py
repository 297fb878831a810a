from __future__ import annotations

import pytest

from tests.small_runs import small_bundle


@pytest.fixture(scope="session")
def small_bundle_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A graph of 300 nodes, 180 of them to train on."""
    return str(small_bundle(tmp_path_factory.mktemp("small-graph")).path)
