"""What the command line of sweeps answers before anything starts."""

from __future__ import annotations

from pathlib import Path

import yaml

import raygnn.tune

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_print_config_shows_the_sweep(capsys):
    assert raygnn.tune.main([str(EXAMPLES / "sweep.yaml"), "--print-config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["tune"]["scheduler"]["type"] == "asha"
    assert shown["tune"]["space"]["optimizer.args.lr"]["loguniform"] == [1e-4, 1e-1]


def test_wrong_input_has_status_2(capsys):
    assert raygnn.tune.main([]) == 2
    assert "CONFIG comes first" in capsys.readouterr().err
    wrong = [str(EXAMPLES / "sweep.yaml"), "--tune.mode", "most"]
    assert raygnn.tune.main(wrong) == 2
    assert "--tune.mode: tune.mode='most' is invalid" in capsys.readouterr().err


def test_a_sweep_under_a_name_that_is_taken_is_refused(capsys, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "finished", "fingerprint": "x"}')
    alone = tmp_path / "alone.yaml"  # as `raygnn prepare` writes it
    alone.write_text("data: {uri: graph}\nscaling: {num_workers: 0}\n")
    place = ["--run.storage_path", str(tmp_path), "--run.name", "mine"]
    for config in (EXAMPLES / "sweep.yaml", alone):
        assert raygnn.tune.main([str(config), "--tune.num_samples", "2", *place]) == 2
        assert "that run has finished. Set run.overwrite to true" in capsys.readouterr().err
