"""raygnn: distributed GNN training on Ray, from Parquet tables to an evaluated model."""

from raygnn.late_imports import wait_for_use

__version__ = "0.1.0"

wait_for_use()
