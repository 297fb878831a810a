from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray for all tests; starting it takes some seven seconds."""
    import ray

    # "local": a bare init would attach to any other Ray of this machine.
    ray.init(address="local", num_cpus=2, log_to_driver=False)
    yield
    ray.shutdown()
