"""The report in a real browser, where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

from tests.small_runs import run_rank, small_config

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in _NAMES if (path := shutil.which(name))), None)


def _browse(*arguments: str) -> str:
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def _lightness(picture: Path) -> float:
    """Mean of all pixels, 0 to 255."""
    return float(255 * matplotlib.image.imread(picture)[..., :3].mean())


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_draws_the_report(small_bundle_path: str, tmp_path: Path):
    config = small_config(tmp_path, scaling__num_workers=0, job_name="<i>slanted</i>")
    run_rank(config, small_bundle_path)
    page = (tmp_path / "run" / "report.html").as_uri()
    profile = f"--user-data-dir={tmp_path / 'browser'}"
    picture = tmp_path / "report.png"
    _browse(profile, "--window-size=1200,2400", f"--screenshot={picture}", page)
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 50_000  # an empty page of that size takes 10 kB
    parsed = _browse(profile, "--dump-dom", page)
    source = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert parsed.count("<canvas") == source.count('class="plot"') >= 6
    dark = tmp_path / "dark.png"
    scheme = "--blink-settings=preferredColorScheme=0"
    _browse(profile, scheme, "--window-size=1200,2400", f"--screenshot={dark}", page)
    assert _lightness(dark) < 80 < 200 < _lightness(picture)
    assert re.search(r"<h1>&lt;i&gt;slanted&lt;/i&gt;</h1>", parsed)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_site_searches_without_a_server(tmp_path: Path):
    pytest.importorskip("mkdocstrings")  # an extra
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True, timeout=200)
    page = (tmp_path / "tutorials" / "shop.html").as_uri() + "?q=churn"
    profile = f"--user-data-dir={tmp_path / 'browser'}"
    shown = _browse(profile, "--virtual-time-budget=10000", "--dump-dom", page)
    assert re.search(r"\d+ matching documents", shown)
    assert "training-tables.html?h=churn" in shown
