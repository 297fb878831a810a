"""Loggers: where metric curves go. They act on rank 0 only."""

from __future__ import annotations

import importlib
import math
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from raygnn.data.filesystem import is_remote, open_fs
from raygnn.errors import ConfigError
from raygnn.loops.callbacks import Callback

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine


class MetricLogger(Callback, ABC):
    """A callback that hands metrics, with their step, to some service.

    Args:
        logs_uri: the run's log folder; injected.
        run_name: injected.
    """

    def __init__(self, logs_uri: str, run_name: str) -> None:
        self.logs_uri, self.run_name = logs_uri, run_name

    @abstractmethod
    def write(self, metrics: dict[str, float], step: int) -> None:
        """Takes finite metrics of one step."""

    def flush(self) -> None:
        """Makes what was written visible to readers."""

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._write(engine, metrics)

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._write(engine, {k: v for k, v in metrics.items() if not k.startswith("train/")})
        if engine.context.rank == 0:
            self.flush()

    def on_test_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._write(engine, metrics)
        if engine.context.rank == 0:
            self.flush()

    def _write(self, engine: Engine, metrics: dict[str, float]) -> None:
        if engine.context.rank == 0:
            finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
            self.write(finite, engine.position.step)


class TensorBoardLogger(MetricLogger):
    """TensorBoard events on any fsspec URI.

    Object stores cannot append: there the growing event file is written locally and copied
    whole at each flush, that is at each validation.
    """

    def on_setup(self, engine: Engine) -> None:
        if engine.context.rank != 0:
            return
        from tensorboardX import SummaryWriter

        self._local = self.logs_uri
        if is_remote(self.logs_uri):
            self._scratch = tempfile.TemporaryDirectory(prefix="raygnn-logs-")
            self._local = self._scratch.name
        else:
            self._local = open_fs(self.logs_uri)[1]
        Path(self._local).mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(self._local, write_to_disk=True)

    def write(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()
        if is_remote(self.logs_uri):
            self._upload()

    def _upload(self) -> None:
        fs, root = open_fs(self.logs_uri)
        fs.makedirs(root, exist_ok=True)
        for file in Path(self._local).iterdir():
            fs.put_file(str(file), f"{root.rstrip('/')}/{file.name}")

    def on_shutdown(self, engine: Engine) -> None:
        if engine.context.rank != 0:
            return
        self._writer.close()
        if is_remote(self.logs_uri):
            self._upload()
            self._scratch.cleanup()


class WandBLogger(MetricLogger):
    """Weights & Biases; needs the extra `raygnn[wandb]`."""

    def __init__(self, logs_uri: str, run_name: str, project: str = "raygnn") -> None:
        super().__init__(logs_uri, run_name)
        self._project = project

    def on_setup(self, engine: Engine) -> None:
        if engine.context.rank != 0:
            return
        wandb = _import_extra("wandb")
        config = engine.loaded.saved
        self._run = wandb.init(project=self._project, name=self.run_name, config=config)

    def write(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def on_shutdown(self, engine: Engine) -> None:
        if engine.context.rank == 0:
            self._run.finish()


class MLflowLogger(MetricLogger):
    """MLflow; needs the extra `raygnn[mlflow]`."""

    def __init__(self, logs_uri: str, run_name: str, experiment: str = "raygnn") -> None:
        super().__init__(logs_uri, run_name)
        self._experiment = experiment

    def on_setup(self, engine: Engine) -> None:
        if engine.context.rank != 0:
            return
        self._mlflow = _import_extra("mlflow")
        self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(run_name=self.run_name)

    def write(self, metrics: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(metrics, step=step)

    def on_shutdown(self, engine: Engine) -> None:
        if engine.context.rank == 0:
            self._mlflow.end_run()


def _import_extra(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"loggers={name!r} is invalid: the package {name} is not installed. Install "
            f"raygnn[{name}], or take {name} out of loggers."
        ) from error
