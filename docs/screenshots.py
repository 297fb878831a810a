"""Draws docs/report.png from the report of a run, such as that of the tutorial "From a database".

`python -m docs.screenshots runs/orders` writes the picture. With `--all FOLDER`, it writes complete
pictures at both usual widths, light and dark, to look for clipped tables and overlapping labels.
Needs Chromium and Pillow.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TARGET = Path(__file__).parent / "report.png"
SIZE = (960, 1120)


def draw(report: Path, picture: Path, size: tuple[int, int], is_dark: bool = False) -> None:
    """Writes a PNG of the first screen of a page, `size` pixels wide and high."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        command += [f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"]
        command += [f"--screenshot={picture}", report.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="also write complete pictures")
    options = parser.parse_args()
    report = options.run / "report.html"
    draw(report, TARGET, SIZE)
    if options.all is not None:
        options.all.mkdir(parents=True, exist_ok=True)
        for width in (1280, 800):
            for scheme in ("light", "dark"):
                name = f"report-{width}-{scheme}.png"
                draw(report, options.all / name, (width, 4000), scheme == "dark")


if __name__ == "__main__":
    main()
