"""Loggers of metric curves."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import re
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raygnn.config import Component, resolve
from raygnn.config.section import leaves
from raygnn.data import filesystem
from raygnn.errors import ConfigError, dotted
from raygnn.loops.callbacks import Callback

if TYPE_CHECKING:
    from raygnn.loops.engine import Engine


class MetricLogger(Callback, ABC):
    """A callback that passes metrics, with their step, to a service. Acts on rank 0 only. The run's
    log folder and name are injected.
    """

    only_on_rank_0 = True
    #: A package that it needs besides raygnn's.
    package: str | None = None

    def __init__(self, logs_uri: str, run_name: str) -> None:
        self.logs_uri, self.run_name = logs_uri, run_name

    @abstractmethod
    def write(self, metrics: dict[str, float], step: int) -> None: ...

    def write_hparams(self, config: Mapping[str, Any], metrics: dict[str, float]) -> None:
        """Logs the resolved config and the final test metrics, after training."""

    def flush(self) -> None: ...

    def on_setup(self, engine: Engine) -> None:
        if self.package is not None:
            _import_extra(self.package)

    def on_log(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._write(engine, metrics)

    def on_validation_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._write(engine, {k: v for k, v in metrics.items() if not k.startswith("train/")})
        self.flush()

    def on_test_end(self, engine: Engine, metrics: dict[str, float]) -> None:
        self._write(engine, metrics)
        self.write_hparams(engine.loaded.saved, _finite(metrics))
        self.flush()

    def on_save_checkpoint(self, engine: Engine, state: dict[str, Any]) -> None:
        self.flush()  # a run that resumes here does not log these rows again

    def _write(self, engine: Engine, metrics: dict[str, float]) -> None:
        self.write(_finite(metrics), engine.position.step)


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


class EventWriter:
    """An event file that is written in the caller's thread.

    tensorboardX passes events to a thread: a flush does not wait for it, and if that thread fails,
    as on a full disk, the next event waits forever.

    Args:
        folder: an existing local folder.
        purge_step: TensorBoard ignores this step and later ones of earlier files.
    """

    def __init__(self, folder: str, purge_step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._event_of = Event
        # Files are read in the order of their names, which have the time in seconds.
        suffix = f".{time.time_ns()}"
        self._file = EventsWriter(os.path.join(folder, "events"), suffix)
        self._file.write_event(Event(step=purge_step, file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._file.write_event(Event(step=purge_step, session_log=start))

    def add_scalars(self, values: dict[str, float], step: int) -> None:
        """Adds a point to each curve. tensorboardX's own `scalar` would replace `@` in names."""
        from tensorboardX.proto.summary_pb2 import Summary

        for name, value in values.items():
            point = Summary.Value(tag=name, simple_value=float(value))
            self.add_summaries([Summary(value=[point])], step)

    def add_summaries(self, summaries: Iterable[Any], step: int = 0) -> None:
        for summary in summaries:
            wall_time = time.time()  # noqa: TID251 (a date that TensorBoard shows)
            event = self._event_of(wall_time=wall_time, step=step, summary=summary)
            self._file.write_event(event)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardLogger(MetricLogger):
    """TensorBoard events on any fsspec URI.

    Object stores cannot append, so the event file is written locally and copied completely at each
    flush: at each validation and checkpoint. Every start of a run has its own file, which begins
    with the step from which TensorBoard ignores earlier ones.
    """

    _writer: EventWriter | None = None

    def on_train_start(self, engine: Engine) -> None:
        first_step = engine.position.step + 1 if engine.position.step else 0
        if filesystem.is_remote(self.logs_uri):
            self._scratch = tempfile.TemporaryDirectory(prefix="raygnn-logs-")
            self._local = self._scratch.name
        else:
            self._local = filesystem.open_fs(self.logs_uri)[1]
        Path(self._local).mkdir(parents=True, exist_ok=True)
        self._writer = EventWriter(self._local, first_step)

    def write(self, metrics: dict[str, float], step: int) -> None:
        assert self._writer is not None
        self._writer.add_scalars(metrics, step)

    def write_hparams(self, config: Mapping[str, Any], metrics: dict[str, float]) -> None:
        from tensorboardX.summary import hparams

        assert self._writer is not None
        self._writer.add_summaries(hparams(flat_config(config), metrics))

    def flush(self) -> None:
        assert self._writer is not None
        self._writer.flush()
        if filesystem.is_remote(self.logs_uri):
            self._upload()

    def _upload(self) -> None:
        fs, root = filesystem.open_fs(self.logs_uri)
        fs.makedirs(root, exist_ok=True)
        for file in Path(self._local).iterdir():
            filesystem.write_bytes(filesystem.join(self.logs_uri, file.name), file.read_bytes())

    def on_shutdown(self, engine: Engine) -> None:
        if self._writer is None:
            return
        self._writer.close()
        if filesystem.is_remote(self.logs_uri):
            self._upload()
            self._scratch.cleanup()


class _RunLogger(MetricLogger):
    """A logger whose service has a run, which a resumed one continues."""

    _run_id: str | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_id = state["run_id"]


class WandBLogger(_RunLogger):
    """Weights & Biases; needs the package `wandb`. A resumed run continues under its id.

    Args:
        project: project that lists the run.
        settings: further arguments of `wandb.init`, such as entity, mode or tags.
    """

    package = "wandb"
    _run: Any = None

    def __init__(
        self, logs_uri: str, run_name: str, project: str = "raygnn", **settings: Any
    ) -> None:
        super().__init__(logs_uri, run_name)
        self._project, self._settings = project, settings

    def on_train_start(self, engine: Engine) -> None:
        self._run = _import_extra("wandb").init(
            project=self._project,
            name=self.run_name,
            config=engine.loaded.saved,
            id=self._run_id,
            resume="allow",
            **self._settings,
        )
        self._run_id = self._run.id

    def write(self, metrics: dict[str, float], step: int) -> None:
        if step >= self._run.step:  # earlier steps are logged already, and W&B cannot go back
            self._run.log(metrics, step=step)

    def on_exception(self, engine: Engine, error: BaseException) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)
            self._run = None

    def on_shutdown(self, engine: Engine) -> None:
        if self._run is not None:
            self._run.finish()


class MLflowLogger(_RunLogger):
    """MLflow; needs the package `mlflow`. A resumed run continues under its id.

    Args:
        experiment: experiment that lists the run.
        tracking_uri: default: `MLFLOW_TRACKING_URI`, or MLflow's default.
    """

    #: Limits of a request and a value: https://mlflow.org/docs/latest/rest-api.html#log-batch.
    _MAX_PARAMS, _MAX_PARAM_CHARACTERS = 100, 6000

    package = "mlflow"
    _mlflow: Any = None
    _status = "FINISHED"

    def __init__(
        self,
        logs_uri: str,
        run_name: str,
        experiment: str = "raygnn",
        tracking_uri: str | None = None,
    ) -> None:
        super().__init__(logs_uri, run_name)
        self._experiment, self._tracking_uri = experiment, tracking_uri
        self._last_steps: dict[str, int] = {}

    def on_train_start(self, engine: Engine) -> None:
        self._mlflow = _import_extra("mlflow")
        if self._tracking_uri is not None:
            self._mlflow.set_tracking_uri(self._tracking_uri)
        self._mlflow.set_experiment(self._experiment)
        if self._run_id is not None:
            self._mlflow.start_run(run_id=self._run_id)
            self._last_steps = self._steps_logged(self._run_id)
            return
        self._run_id = self._mlflow.start_run(run_name=self.run_name).info.run_id
        texts = {
            name: str(value)[: self._MAX_PARAM_CHARACTERS]
            for name, value in flat_config(engine.loaded.saved).items()
        }
        for start in range(0, len(texts), self._MAX_PARAMS):
            part = list(texts.items())[start : start + self._MAX_PARAMS]
            self._mlflow.log_params({_mlflow_name(name): text for name, text in part})

    def write(self, metrics: dict[str, float], step: int) -> None:
        named = {_mlflow_name(name): value for name, value in metrics.items()}
        new = {name: v for name, v in named.items() if step > self._last_steps.get(name, -1)}
        self._mlflow.log_metrics(new, step=step)

    def on_exception(self, engine: Engine, error: BaseException) -> None:
        self._status = "FAILED"

    def on_shutdown(self, engine: Engine) -> None:
        if self._mlflow is not None:
            self._mlflow.end_run(self._status)

    def _steps_logged(self, run_id: str) -> dict[str, int]:
        client = self._mlflow.MlflowClient()
        return {
            name: max(metric.step for metric in client.get_metric_history(run_id, name))
            for name in client.get_run(run_id).data.metrics
        }


def _mlflow_name(name: str) -> str:
    return re.sub(r"[^\w./ -]", "_", name)


def check_packages(loggers: Iterable[Component], allow_modules: Sequence[str]) -> None:
    """Raises a ConfigError if a logger's package is not installed here. Imports none of them."""
    for logger in loggers:
        package = getattr(resolve(logger, "logger", allow_modules), "package", None)
        if package is None or sys.modules.get(package) is not None:
            continue
        if importlib.util.find_spec(package) is None:
            raise _not_installed(package)


def _import_extra(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _not_installed(name) from error


def _not_installed(name: str) -> ConfigError:
    return ConfigError(
        f"loggers={name!r} is invalid: the package {name} is not installed. Run `pip install "
        f"{name}`, or take {name} out of loggers. [logger-not-installed]"
    )


def flat_config(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """The values of a saved config by dotted key, without nulls and empty values. A list of scalars
    is one text, `[15, 10]`; other lists number their items: `losses.0.type`.
    """
    texts = {path: json.dumps(v) if isinstance(v, list) else v for path, v in leaves(config)}
    return {dotted(path): v for path, v in texts.items() if v not in (None, "[]", {})}
