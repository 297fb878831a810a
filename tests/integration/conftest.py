from __future__ import annotations

import socket
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


@pytest.fixture(scope="session")
def gcs_bucket() -> Iterator[str]:
    """`gs://` URI of a bucket of a storage emulator, for the real gcsfs client.

    Processes that start meanwhile reach it too: the settings are in the environment.
    """
    import fsspec.config
    from gcp_storage_emulator.server import create_server

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    patch = pytest.MonkeyPatch()
    patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    patch.setenv("FSSPEC_GCS_TOKEN", "anon")
    # gcsfs asks over gRPC what kind of bucket it is, which the emulator does not speak.
    patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # This process has read the environment already.
    patch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="raygnn-test")
    server.start()
    yield "gs://raygnn-test"
    server.stop()
    patch.undo()
