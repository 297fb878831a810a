"""Stored neighborhoods: Parquet files with one row per micro-batch."""
