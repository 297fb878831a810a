"""docs/presampling.md does what it says: its config, its commands and its names of files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

import raygnn.__main__ as command
from tests.faults.outcome import assert_equal_outcomes

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
