"""Sluice keeps other data stores in step with MySQL: log to Parquet batches, merged, ruled, loaded, acknowledged."""

__version__ = "0.1.0"
