"""Training on neighborhoods that were sampled beforehand: the bits of sampling them live."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import raygnn.__main__ as command
import raygnn.train
from raygnn.console import Pace
from raygnn.data.checksums import dump_record, parse_record
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.presample import presample
from raygnn.runtime import presample as runtime
from raygnn.sampling import stored_samples
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.sample_record import RECORD_NAME
from raygnn.sampling.stored_samples import write_file
from tests.errors import raises
from tests.faults.outcome import assert_equal_outcomes
from tests.partitioned_runs import LINKS, planted_parts
from tests.small_runs import small_config


def _config(folder: Path, uri: str, **changes: Any) -> dict[str, Any]:
    return small_config(folder, **{"data": {"uri": uri}, "scaling__num_workers": 0, **changes})


def test_a_run_has_the_bits_of_a_live_one(
    tmp_path: Path, small_tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of other tasks and samplers: see tests/numerics/test_presampled.py."""
    live = _config(tmp_path / "live", small_tables)
    raygnn.train.fit(live)
    presample(live, tmp_path / "samples")
    stored = _config(tmp_path / "stored", small_tables)
    with monkeypatch.context() as patch:
        patch.delattr(NeighborSampler, "sample")  # nothing is sampled in training
        overrides = ["--data.mode", "presampled", "--data.samples", str(tmp_path / "samples")]
        raygnn.train.fit(stored, overrides)
    assert_equal_outcomes(tmp_path / "stored" / "run", tmp_path / "live" / "run")


def _train(folder: Path, uri: str, samples: Path, **changes: Any) -> None:
    data = {"uri": uri, "mode": "presampled", "samples": str(samples)}
    raygnn.train.fit(_config(folder, uri, data=data, **changes))


@pytest.fixture
def samples(tmp_path: Path, small_tables: str) -> Path:
    presample(_config(tmp_path, small_tables), tmp_path / "samples", num_epochs=2)
    return tmp_path / "samples"


@pytest.mark.parametrize(
    ("changes", "id", "values"),
    [
        ({"sampling": {"fanouts": [4, 2]}}, "samples-settings", ["sampling.fanouts", 2]),
        ({"sampling": {"fanouts": [4, 3], "type": "labor"}}, "samples-settings", ["type"]),
        ({"seed": 5}, "samples-settings", ["seed=0", 5]),
        ({"loader": {"batch_size": 32}}, "samples-settings", ["loader.batch_size=16", 32]),
        (
            {"loader": {"batch_size": 16, "eval_batch_size": 64}},
            "samples-settings",
            ["loader.eval_batch_size=32", 64, "'val'"],
        ),
        (
            {"data__splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2], "seed": 9}},
            "samples-requests",
            ["data.splits.seed"],
        ),
    ],
)
def test_a_set_of_another_config_is_refused_before_training(
    changes: dict[str, Any],
    id: str,
    values: list[Any],
    small_tables: str,
    samples: Path,
    tmp_path: Path,
) -> None:
    with raises(id, samples, *values):
        _train(tmp_path, small_tables, samples, **changes)
    assert not (tmp_path / "run").exists()


def test_a_set_of_other_negatives_is_refused_before_training(
    tmp_path: Path, small_tables: str
) -> None:
    presample(_config(tmp_path, small_tables, **LINKS), tmp_path / "samples", num_epochs=1)
    changes = {**LINKS, "task__args__num_random_negatives": 17}
    with raises("samples-requests", "task.args.num_random_negatives", 16, 17):
        _train(tmp_path, small_tables, tmp_path / "samples", **changes)
    # what draws do not follow from may differ
    decoder = {"task__args__decoder": {"type": "distmult"}, "training__max_steps": 1}
    _train(tmp_path, small_tables, tmp_path / "samples", **{**LINKS, **decoder})


def test_a_set_of_another_graph_is_refused(
    tmp_path: Path, small_tables: str, samples: Path
) -> None:
    tables = synthetic_tables(
        "planted_partition", num_nodes=300, num_classes=3, num_features=8, seed=2
    )
    with raises("samples-graph", samples, "the tables of data.uri differ"):
        _train(tmp_path, write_tables(tables, str(tmp_path / "other")), samples)


def test_a_set_of_other_versions_is_refused(
    tmp_path: Path, small_tables: str, samples: Path
) -> None:
    text = (samples / RECORD_NAME).read_text()
    for key in ("version", "rng_version"):
        content = {**parse_record(text), key: 7}
        (samples / RECORD_NAME).write_text(dump_record(content))
        with raises("samples-version", samples, 7, 1):
            _train(tmp_path, small_tables, samples)
    for damaged in (text[:-10], text.replace("file_sizes", "x"), text.replace("layout", "x")):
        (samples / RECORD_NAME).write_text(damaged)
        with raises("samples-record-damaged", RECORD_NAME):
            _train(tmp_path, small_tables, samples)


def test_a_set_that_is_not_whole_is_refused(
    tmp_path: Path, small_tables: str, samples: Path
) -> None:
    file = samples / "train" / "epoch-00001" / "000000000.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with raises("samples-damaged", "train/epoch-00001/000000000.parquet", f"{len(content):,}"):
        _train(tmp_path, small_tables, samples)
    file.unlink()
    with raises("samples-damaged", "train/epoch-00001/000000000.parquet is missing"):
        _train(tmp_path, small_tables, samples)
    presample(_config(tmp_path, small_tables), samples, num_epochs=2)  # writes it anew
    assert file.read_bytes() == content
    (samples / RECORD_NAME).unlink()
    with raises("samples-interrupted", samples):
        _train(tmp_path, small_tables, samples)
    with raises("samples-missing", tmp_path / "nowhere"):
        _train(tmp_path, small_tables, tmp_path / "nowhere")
    with raises("samples-split", "val", "train"):
        exact = {"training__eval": "exact"}
        presample(_config(tmp_path, small_tables, **exact), tmp_path / "exact", num_epochs=1)
        _train(tmp_path, small_tables, tmp_path / "exact")


def test_a_changed_byte_ends_the_run_with_the_name_of_the_file(
    tmp_path: Path, small_tables: str, samples: Path
) -> None:
    name = "train/epoch-00001/000000000.parquet"
    content = bytearray((samples / name).read_bytes())
    content[len(content) // 3] ^= 1
    (samples / name).write_bytes(content)
    with raises("samples-damaged", name):
        _train(tmp_path, small_tables, samples)
    (samples / name).unlink()
    presample(_config(tmp_path, small_tables), samples, num_epochs=2)
    _train(tmp_path, small_tables, samples)


def test_an_interrupted_presample_resumes_and_a_set_grows(
    tmp_path: Path, small_tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path, small_tables)
    presample(config, tmp_path / "straight", num_epochs=3)
    written: list[str] = []

    def few(uri: str, *given: Any) -> int:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(given[-1].name)
        return write_file(uri, *given)

    monkeypatch.setattr(stored_samples, "write_file", few)
    with pytest.raises(KeyboardInterrupt):
        presample(config, tmp_path / "samples", num_epochs=2)
    with raises("samples-settings", "sampling.fanouts"):
        presample({**config, "sampling": {"fanouts": [3, 3]}}, tmp_path / "samples", num_epochs=2)
    before = list(written)

    def rest(uri: str, *given: Any) -> int:
        written.append(given[-1].name)
        return write_file(uri, *given)

    monkeypatch.setattr(stored_samples, "write_file", rest)
    presample(config, tmp_path / "samples", num_epochs=2)
    presample(config, tmp_path / "samples", num_epochs=3)
    presample(config, tmp_path / "samples", num_epochs=3)
    assert before == written[:3]
    assert len(set(written)) == len(written)  # each once
    straight = {p.relative_to(tmp_path / "straight"): p for p in (tmp_path / "straight").rglob("*")}
    for name, path in straight.items():
        if path.is_file():
            assert (tmp_path / "samples" / name).read_bytes() == path.read_bytes(), name


def test_the_start_says_whether_epochs_repeat(
    tmp_path: Path, small_tables: str, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, num_epochs in (("same", 2), ("more", 3)):
        _train(tmp_path / name, small_tables, samples, training__max_epochs=num_epochs)
        line = re.search(r"neighborhoods of 2 epochs of 12 batches.*", capsys.readouterr().out)
        assert line is not None
        assert ("repeat" in line[0]) == (num_epochs == 3)


def test_a_partitioned_graph_is_refused(tmp_path: Path) -> None:
    parts = planted_parts(tmp_path, 2)
    with raises("presample-parts", parts):
        presample(_config(tmp_path, str(parts)), tmp_path / "samples")


def test_it_says_how_far_it_is_and_what_it_needs(
    tmp_path: Path,
    small_tables: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Pace, "EVERY_S", 0)
    config = _config(tmp_path, small_tables)
    presample(config, tmp_path / "samples", num_epochs=2)
    shown = capsys.readouterr().out
    assert re.search(r"presample: 12 of \d+ batches, \d+%, \d+ s left", shown)
    assert re.search(r"presample: about [\d.]+ MB to write", shown)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10))
    with raises("presample-disk", tmp_path / "full"):
        presample(config, tmp_path / "full", num_epochs=2)


def test_epochs_are_those_of_the_config_and_fewer_of_long_ones(
    tmp_path: Path, small_tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored(max_epochs: int | None, num_epochs: int | None = None) -> int:
        limits = {"max_epochs": max_epochs, "max_steps": 1}
        config = _config(tmp_path, small_tables, training=limits)
        out = tmp_path / f"{max_epochs}-{num_epochs}"
        return presample(config, out, num_epochs=num_epochs).splits["train"].num_epochs

    assert (stored(2), stored(2, 1), stored(1, 3)) == (2, 1, 3)
    monkeypatch.setattr(runtime, "_MOST_BATCHES", 36)  # of 12 batches an epoch
    monkeypatch.setattr(runtime, "_MOST_EPOCHS", 2)
    assert (stored(50), stored(None)) == (3, 3)
    monkeypatch.setattr(runtime, "_MOST_BATCHES", 1)
    assert stored(51) == 2


PAGE = (Path(__file__).parents[2] / "docs" / "presampling.md").read_text()


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = {**yaml.safe_load(text), "scaling": {"num_workers": 0}, "loggers": []}
    config["data"]["synthetic"] |= {"num_users": 200, "num_items": 80, "num_purchases": 2_000}
    config["training"]["max_epochs"] = 3
    Path("train.yaml").write_text(yaml.safe_dump(config))
    commands = re.findall(r"^    raygnn ((?:presample|train) .*)$", PAGE, re.MULTILINE)
    assert [line.split()[0] for line in commands] == ["presample", "train"]
    for line in commands:
        assert command.main(shlex.split(line)) == 0
    live = shlex.split("train train.yaml --run.storage_path live")
    assert command.main(live) == 0
    assert_equal_outcomes(Path("runs/shop"), Path("live/shop"))
    for name in re.findall(r"^    samples/(\S+)", PAGE, re.MULTILINE):
        assert Path("samples", name.removesuffix("...")).exists(), name
