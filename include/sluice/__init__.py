"""Sluice keeps other data stores in step with MySQL: log to Parquet batches, merged, ruled, loaded, acknowledged."""

import os

__version__ = "0.3.0.dev0"

os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")
"""Milliseconds that pyarrow keeps memory it let go; it looks here when it is loaded.

With its own 10 ms, the pages of a batch go back to the system and are asked for again from one piece to the next."""
