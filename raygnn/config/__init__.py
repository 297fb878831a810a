"""The config: loading, checking, and building what it names."""

from raygnn.config.batch import BatchPlan
from raygnn.config.component import Component
from raygnn.config.components import build, check_component, resolve
from raygnn.config.json_schema import config_json_schema
from raygnn.config.loading import LoadedConfig, load_config
from raygnn.config.period import Period
from raygnn.config.schema import Config
from raygnn.config.training_section import LossTerm
from raygnn.errors import ConfigError

__all__ = [
    "BatchPlan",
    "Component",
    "Config",
    "ConfigError",
    "LoadedConfig",
    "LossTerm",
    "Period",
    "build",
    "check_component",
    "config_json_schema",
    "load_config",
    "resolve",
]
