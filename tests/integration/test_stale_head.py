"""A head of one's own is joined; one that has died without `ray stop` delays nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.integration.ray_head import RayHead, kill
from tests.wait_until import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.cluster]

_CONNECT = "from raygnn.runtime.connection import connect; connect()"


def test_a_head_is_joined_until_it_dies():
    with RayHead(num_cpus=3, takes_jobs=False) as head:
        environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        environment |= {k: v for k, v in head.driver_environment.items() if k != "RAY_ADDRESS"}
        environment["RAY_TMPDIR"] = str(head.folder)

        def connect() -> str:
            done = subprocess.run(
                [sys.executable, "-c", _CONNECT],
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            )
            return done.stdout

        file = head.folder / "ray" / "ray_current_cluster"
        wait_until(lambda: file.exists() and file.read_text() != "", head.process)
        address = file.read_text()
        alive = connect()
        assert f"joined the one at {address}" in alive
        assert "3 CPUs" in alive
        kill(head.process)
        dead = connect()
        assert f"warning: no Ray answers at {address}" in dead
        assert "started on this machine" in dead
