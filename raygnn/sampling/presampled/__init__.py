"""Neighborhoods that were sampled beforehand: Parquet files of one row a micro-batch."""
