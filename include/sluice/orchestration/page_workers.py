"""A few threads of the page's own for what its routes do besides waiting.

Airflow's routes share one small pool of threads with every plain function that is a route of a plugin. So the page's
routes are coroutines, and what they have to wait for is done here: requests queue, and none is waited for without a
limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastapi import HTTPException

_T = TypeVar("_T")


class PageWorkers:
    """A pool of ``threads``.

    ``limit_s``: how long a request waits for a free one and for the answer; ``late``: what it is told then.
    """

    def __init__(self, name: str, threads: int, limit_s: float, late: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._limit_s = limit_s
        self._late = late

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run ``call`` in the pool and return or raise what it does. Raises a 503 answer if it takes too long."""
        work = asyncio.get_running_loop().run_in_executor(self._pool, call)
        try:
            return await asyncio.wait_for(work, self._limit_s)
        except TimeoutError:
            raise HTTPException(503, self._late) from None
