"""A new user's way, by the commands of docs/own-tables.md: from CSVs to answers over HTTP."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("ray.serve")  # an extra
import requests

from tests.runs.test_own_tables_doc import PAGE, blocks, write_shop
from tests.wait_until import wait_until

BIN = Path(sys.executable).parent


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_new_user_comes_to_recommendations_over_http(tmp_path: Path) -> None:
    write_shop(tmp_path / "shop")
    (tmp_path / "links.yaml").write_text(blocks("yaml")[1])
    lines = re.findall(r"^    (python -m .*|curl .*)$", PAGE.replace("\\\n", ""), re.MULTILINE)
    draft, train, recommend, serve, ask = lines[:5]
    shell = {"cwd": tmp_path, "env": {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}}
    for command in (draft, train, recommend):
        subprocess.run(shlex.split(command), check=True, **shell)
    (_, url, _, body), port = shlex.split(ask), _free_port()
    server = subprocess.Popen([*shlex.split(serve), "--port", str(port)], **shell)
    try:
        url = url.replace("8000", str(port))
        user = int(pd.read_csv(tmp_path / "shop" / "users.csv")["user_id"][3])
        wait_until(lambda: _answers(url), server)
        answer = requests.post(url, json=json.loads(body) | {"anchors": [user]}, timeout=60)
        offers = pd.read_parquet(tmp_path / "out" / "offers" / "neighbors")
        offered = set(offers.loc[offers["anchor_id"] == user, "neighbor_id"])
        served = {row["neighbor_id"] for row in answer.json()["rows"]}
        assert len(served) == len(offered) == 10
        assert len(served & offered) >= 6  # the table is of sampled neighborhoods
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=120)


def _answers(url: str) -> bool:
    try:
        return requests.get(url.replace("top_k", "health"), timeout=5).ok
    except requests.RequestException:
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
