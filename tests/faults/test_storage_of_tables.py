"""Tables on storage that fails, is slow or full: read, predicted, and written as neighborhoods."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raygnn import infer, presample, train
from raygnn.console import Pace
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.tables.graph_tables import write_tables
from raygnn.inference.row_tables import write_table
from tests.faults import faulty_storage
from tests.faults.conftest import Straight, write_config
from tests.faults.faulty_storage import Fault
from tests.folders import contents
from tests.graph_writer import write_graph
from tests.partitioned_graphs import shop

Fail = Callable[..., None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Sets the faults of `faulty://`. Pauses between tries pass at once."""
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _: None))

    def set_faults(*faults: Fault) -> None:
        monkeypatch.setattr(faulty_storage, "_FAULTS", list(faults))

    set_faults()
    return set_faults


@contextmanager
def _small_files(num_bytes: int) -> Iterator[None]:
    """No process can write larger files, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["answers.csv", "answers.parquet"])
def test_a_table_that_does_not_fit_leaves_the_earlier_one(name: str, tmp_path: Path) -> None:
    uri, rows = tmp_path / name, np.random.default_rng(0).random(20_000)
    write_table(pa.table({"x": rows[:10]}), uri)
    before = uri.read_bytes()
    with pytest.raises(OSError, match="File too large"), _small_files(50_000):
        write_table(pa.table({"x": rows}), uri)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: before}


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_tables_in_a_bucket_that_fails_for_a_moment_are_read(
    suffix: str, tmp_path: Path, fail: Fail
) -> None:
    """While they are hashed, scanned and read: each file is opened at least three times."""
    nodes = pa.table({"id": np.arange(50), "a": np.random.default_rng(0).random(50)})
    edges = pa.table({"s": np.arange(50), "t": np.arange(50)[::-1]})
    spec = {"features": {"x": "a"}}
    uri = write_graph(tmp_path / "tables", [nodes], [edges], spec, suffix=suffix)
    expected = ingest(uri, cache_dir=tmp_path / "expected")
    for skip in range(6):
        fault = Fault(suffix, number="ECONNRESET", reads=True, times=1, skip=skip)
        fail(fault)
        bundle = ingest(f"faulty://{uri}", cache_dir=tmp_path / f"cache-{skip}")
        assert fault.times == 0
        assert contents(bundle.path, "*.npy") == contents(expected.path, "*.npy")


def test_tables_in_a_bucket_that_stays_down_are_an_error(
    small_tables: str, tmp_path: Path, fail: Fail, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"uri": f"faulty://{small_tables}", "cache_dir": str(tmp_path / "cache")}
    config = write_config(tmp_path, small_tables, {"data": data})
    fail(Fault(r"\.parquet$", reads=True))
    assert train.main([str(config)]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].endswith("then repeat the command. [storage-failed]")
    assert "tried 6 times" in error
    assert "Traceback" not in error


def test_tables_in_a_slow_bucket_show_progress(
    tmp_path: Path, fail: Fail, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "EVERY_S", 0.05)
    uri = write_tables(shop(), str(tmp_path / "tables"), num_shards=8)
    fail(Fault(r"\.parquet$", reads=True, delay_s=0.02))
    ingest(f"faulty://{uri}", cache_dir=tmp_path / "cache")
    printed = capsys.readouterr().out
    assert "reading files: " in printed
    assert "reading edges: " in printed


def _lines(error: str) -> list[str]:
    return [line for line in error.splitlines() if "No space left" in line]


@pytest.mark.slow
@pytest.mark.parametrize("file", [r"/part-00000-of-00001\.parquet$", r"/_manifest\.json$"])
def test_predictions_on_a_full_disk_are_incomplete_until_they_are_repeated(
    file: str,
    straight: Straight,
    small_tables: str,
    tmp_path: Path,
    fail: Fail,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = straight(1, {})
    arguments = [str(run), "--data.uri", small_tables, "--scaling.num_workers", "0", "--out"]
    assert infer.main([*arguments, str(tmp_path / "expected")]) == 0
    out = tmp_path / "out"
    fail(Fault(file, "ENOSPC"))
    assert infer.main([*arguments, f"faulty://{out}"]) == 1
    error = capsys.readouterr().err
    assert len(_lines(error)) == 1, error
    assert "Traceback" not in error
    assert not (out / "_manifest.json").exists()
    fail()
    assert infer.main([*arguments, f"faulty://{out}"]) == 0
    assert contents(out, "*.parquet") == contents(tmp_path / "expected", "*.parquet")


@pytest.mark.slow
def test_neighborhoods_on_a_full_disk_are_incomplete_until_they_are_repeated(
    small_tables: str, tmp_path: Path, fail: Fail, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"scaling__num_workers": 0, "training__max_epochs": 2}
    config = str(write_config(tmp_path, small_tables, changes))
    assert presample.main([config, "--out", str(tmp_path / "expected")]) == 0
    out = tmp_path / "out"
    fail(Fault(r"\.parquet$", "ENOSPC", skip=2))
    assert presample.main([config, "--out", f"faulty://{out}"]) == 1
    error = capsys.readouterr().err
    assert len(_lines(error)) == 1, error
    assert "Traceback" not in error
    reads = ["--data.mode", "presampled", "--data.samples", f"faulty://{out}"]
    assert train.main([config, *reads]) == 2
    assert "[samples-" in capsys.readouterr().err
    fail()
    assert presample.main([config, "--out", f"faulty://{out}"]) == 0
    assert contents(out, "*.parquet") == contents(tmp_path / "expected", "*.parquet")
    assert train.main([config, *reads]) == 0
