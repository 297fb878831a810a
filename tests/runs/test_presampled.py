"""Training on neighborhoods that were sampled beforehand: the bits of sampling them live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raygnn.train
from raygnn.data.synthetic.generators import synthetic_tables
from raygnn.data.tables.graph_tables import write_tables
from raygnn.presample import presample
from raygnn.sampling.neighbor_sampler import NeighborSampler
from tests.faults.outcome import assert_equal_outcomes
from tests.partitioned_runs import LINKS
from tests.small_runs import small_config


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    tables = synthetic_tables(
        "planted_partition", num_nodes=300, num_classes=3, num_features=8, seed=1
    )
    return write_tables(tables, str(tmp_path_factory.mktemp("planted")), num_shards=2)


def _config(folder: Path, uri: str, **changes: Any) -> dict[str, Any]:
    return small_config(folder, **{"data": {"uri": uri}, "scaling__num_workers": 0, **changes})


def _assert_equals_live(
    folder: Path, uri: str, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> None:
    live = _config(folder / "live", uri, **changes)
    raygnn.train.fit(live)
    presample(live, folder / "samples")
    stored = _config(folder / "stored", uri, **changes)
    with monkeypatch.context() as patch:
        patch.delattr(NeighborSampler, "sample")  # nothing is sampled in training
        overrides = ["--data.mode", "presampled", "--data.samples", str(folder / "samples")]
        raygnn.train.fit(stored, overrides)
    assert_equal_outcomes(folder / "stored" / "run", folder / "live" / "run")


def test_a_run_has_the_bits_of_a_live_one(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _assert_equals_live(tmp_path, planted, monkeypatch)


def test_links(tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _assert_equals_live(tmp_path, planted, monkeypatch, **LINKS)
