"""What a start finds under its name: nothing, a run that resumes, or one that is in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygnn.config import LoadedConfig, load_config
from raygnn.errors import RunError
from raygnn.loops.run_folder import RunFolder, RunStatus, check_run_folder, open_run_folder


def _load(folder: Path, *overrides: str) -> LoadedConfig:
    config = {"run": {"name": "run", "storage_path": str(folder)}, "training": {"max_epochs": 4}}
    return load_config(config, overrides)


def _started(folder: Path, *overrides: str) -> RunFolder:
    """A run whose workers have started, as its folder shows it."""
    run = open_run_folder(_load(folder, *overrides), "run")
    run.record_start(resumed_from=None, step=0, num_workers=1)
    return run


def _finished(folder: Path, reason: str, *overrides: str) -> None:
    run = _started(folder, *overrides)
    (folder / "run" / "checkpoints").mkdir()
    (folder / "run" / "checkpoints" / "last.json").write_text("{}")
    run.write_state(RunStatus.FINISHED, _load(folder, *overrides), reason)


def test_a_folder_whose_workers_never_started_is_taken_over(tmp_path: Path) -> None:
    refused = open_run_folder(_load(tmp_path, "--optimizer.args.lr=0.5"), "run")
    mended = open_run_folder(_load(tmp_path), "run")
    assert refused.is_superseded()
    assert mended.is_this_start()
    with pytest.raises(RunError, match=r"resume='must' is invalid: no run named 'run'"):
        open_run_folder(_load(tmp_path, "--checkpoint.resume=must"), "run")


def test_another_config_is_told_by_the_keys_that_differ(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LR_THERE", "0.25")
    _started(
        tmp_path,
        "--optimizer.args.lr=${env:LR_THERE}",
        "--sampling.fanouts=[4]",
        "--model.args.api_key=there",
        "--scaling.num_workers=2",
        "--loader.batch_size=8",
    )
    other = _load(tmp_path, "--model.args.api_key=here", "--loader.batch_size=8")
    with pytest.raises(RunError) as raised:
        check_run_folder(other, "run")
    assert str(raised.value) == (
        "run.name='run' is invalid: an unfinished run of another config is there: "
        "sampling.fanouts is [4] there and [15, 10] here; "
        "optimizer.args.lr is '${env:LR_THERE}' there and 0.005 here; "
        "training.global_batch_size is 16 there and 8 here. "
        "Set --run.overwrite true to replace it, or another run.name."
    )


@pytest.mark.parametrize(
    ("reason", "limit", "old", "larger"),
    [
        ("training.max_epochs=4", "training.max_epochs", 4, ["5"]),
        ("training.max_steps=7", "training.max_steps", 7, ["8", "null"]),
        ("early stopping: val/loss has not improved", "early_stopping.patience", 3, ["9"]),
    ],
)
def test_a_finished_run_trains_on_when_the_limit_that_ended_it_is_raised(
    tmp_path: Path, reason: str, limit: str, old: int, larger: list[str]
) -> None:
    before = f"--{limit}={old}"
    _finished(tmp_path, reason, before)
    match = rf"that run has finished\. Set .* or {limit} to more than {old} to train on"
    for same_or_less in (before, f"--{limit}=1"):
        with pytest.raises(RunError, match=match):
            check_run_folder(_load(tmp_path, same_or_less), "run")
    for value in larger:
        assert not check_run_folder(_load(tmp_path, f"--{limit}={value}"), "run").is_this_start()
    never = _load(tmp_path, f"--{limit}={larger[0]}", "--checkpoint.resume=never")
    with pytest.raises(RunError, match=r"resume='never' is invalid"):
        check_run_folder(never, "run")
    # Another limit than the one that ended it would end it at once.
    with pytest.raises(RunError, match=match):
        check_run_folder(_load(tmp_path, before, "--training.max_samples=10000"), "run")


def test_a_finished_run_without_checkpoints_or_of_another_config_stays(tmp_path: Path) -> None:
    _finished(tmp_path, "training.max_epochs=4")
    other = _load(tmp_path, "--training.max_epochs=9", "--seed=3")
    with pytest.raises(RunError, match=r"has finished, with another config: seed is 0 there and 3"):
        check_run_folder(other, "run")
    (tmp_path / "run" / "checkpoints" / "last.json").unlink()
    with pytest.raises(RunError, match=r"that run has finished\. Set --run\.overwrite true"):
        check_run_folder(_load(tmp_path, "--training.max_epochs=9"), "run")
