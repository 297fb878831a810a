"""Models in MLflow's registry, `models:/NAME@ALIAS` or `models:/NAME/VERSION`."""

from __future__ import annotations

import hashlib
import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from raygnn.data.cache import build_once, cache_folder
from raygnn.errors import RunError

PREFIX = "models:/"
_MODEL = "model"  # folder of the files among the artifacts of MLflow's run


def downloaded(uri: str) -> str:
    """A folder in the cache with the files of a version. Raises a RunError if it is not there."""
    mlflow = _import_mlflow(uri)
    name, _, version = uri.removeprefix(PREFIX).partition("/")
    try:
        client = mlflow.MlflowClient()
        if "@" in name:
            name, _, alias = name.partition("@")
            version = client.get_model_version_by_alias(name, alias).version
        source = client.get_model_version(name, version).source
        key = hashlib.sha256(f"{source} {name} {version}".encode()).hexdigest()[:32]

        def download(building: Path) -> None:
            exact, to = f"{PREFIX}{name}/{version}", str(building)
            mlflow.artifacts.download_artifacts(artifact_uri=exact, dst_path=to)

        return str(build_once(cache_folder(None, "mlflow") / key, download, f"the model {uri}"))
    except mlflow.MlflowException as error:
        raise _refused(uri, str(error)) from error


def added(uri: str, folder: str, alias: str | None) -> str:
    """Logs the files of a local folder as a new version, and returns its number."""
    mlflow, name = _import_mlflow(uri), uri.removeprefix(PREFIX)
    try:
        client = mlflow.MlflowClient()
        with suppress(mlflow.MlflowException):  # it is there, or the next call fails too
            client.create_registered_model(name)
        with mlflow.start_run(run_name=name) as run:
            mlflow.log_artifacts(folder, _MODEL)
        source = f"{run.info.artifact_uri}/{_MODEL}"
        version = str(client.create_model_version(name, source, run.info.run_id).version)
        if alias is not None:
            client.set_registered_model_alias(name, alias, version)
    except mlflow.MlflowException as error:
        raise _refused(uri, str(error)) from error
    return version


def _import_mlflow(uri: str) -> Any:
    try:
        return importlib.import_module("mlflow")
    except ImportError as error:
        raise _refused(uri, "the package mlflow is not installed here") from error


def _refused(uri: str, reason: str) -> RunError:
    return RunError(
        f"MODEL={uri!r} is invalid: {reason}. Install mlflow, set MLFLOW_TRACKING_URI, and name a "
        "model as models:/NAME@ALIAS or models:/NAME/VERSION. [registry-mlflow]"
    )
