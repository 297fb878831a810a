"""raygnn: distributed GNN training on Ray, from Parquet tables to an evaluated model."""

__version__ = "0.1.0"
