"""Units in threads of this process, without Spark: for the command line and for tests. Arrow and the servers release the GIL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class LocalRunner:
    """See :class:`sluice.spark.base.UnitRunner`."""

    def run(
        self,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        *,
        parallelism: int = 4,
        description: str = "",
    ) -> list[Any]:
        del description
        if len(units) <= 1 or parallelism <= 1:
            return [function(unit) for unit in units]
        with ThreadPoolExecutor(min(parallelism, len(units)), thread_name_prefix="unit") as pool:
            futures = [pool.submit(function, unit) for unit in units]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
