"""`raygnn presample`: its options and exit statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import raygnn.__main__ as command
from tests.errors import assert_reports


@pytest.mark.parametrize("given", [[], ["--out", "samples", "--epochs", "0"]])
def test_it_needs_a_folder_and_epochs(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["presample", "train.yaml", *given]) == 2
    assert_reports(capsys.readouterr().err, "presample-options", *given)


def test_what_is_not_presampled_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.yaml").write_text("{data: {uri: graph}, task: self_supervised}")
    given = ["presample", str(tmp_path / "train.yaml"), "--out", str(tmp_path / "samples")]
    assert command.main(given) == 2
    assert_reports(capsys.readouterr().err, "samples-task", "self_supervised")


def test_keys_of_the_config_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.yaml").write_text("data: {uri: graph}")
    given = ["presample", str(tmp_path / "train.yaml"), "--out", "s", "--seed", "7"]
    assert command.main([*given, "--print-config"]) == 0
    shown = capsys.readouterr().out
    assert "\nseed: 7\n" in "\n" + shown
    assert "samples: s" in shown
