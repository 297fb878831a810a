from raygnn.config.components import build, resolve
from raygnn.config.loader_section import BatchPlan
from raygnn.config.loading import LoadedConfig, load_config
from raygnn.config.schema import Config
from raygnn.config.section import Component, Period
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
    "load_config",
    "resolve",
]
