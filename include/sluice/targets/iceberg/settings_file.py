"""The library's own settings (``PYICEBERG_…`` variables and ``.pyiceberg.yaml``), which a process reads once.

Decision: the library goes through all variables of the environment, and looks for the file in three folders, three
times per commit, which took a twelfth of the processor time of a commit to a small table. Neither changes while a
process runs. A version of the library that reads them once would make this module needless.
"""

from __future__ import annotations

from functools import cache


def use_kept_settings() -> None:
    """Make the library read its settings at the first use only. A repeat does nothing."""
    from pyiceberg import serializers
    from pyiceberg.io import pyarrow as library

    if not hasattr(library.Config, "cache_info"):
        library.Config = serializers.Config = cache(library.Config)
