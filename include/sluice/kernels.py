"""Compiled functions: made once, kept on disk, and loaded by a fresh process without loading the compiler."""

from __future__ import annotations

from typing import Any, TypeVar

import numba as nb
from numba.core.runtime import rtsys

_F = TypeVar("_F")


def kernel(function: _F) -> _F:
    """Compile for this processor, without the interpreter lock, and keep the result on disk (per source, processor and version of Numba)."""
    compiled = nb.njit(nogil=True, cache=True)(function)
    _load_quickly(compiled)
    return compiled  # type: ignore[no-any-return]


def _load_quickly(compiled: Any) -> None:
    """Skip what Numba does before it looks into its cache: it loads all that it could compile with (0.25 s of a process's start).

    Compiled code needs only the runtime; if there is none on disk, Numba loads the rest before it compiles. A version of Numba that is built
    differently keeps its own way.
    """
    cache = getattr(compiled, "_cache", None)
    load, guard = (getattr(cache, name, None) for name in ("_load_overload", "_guard_against_spurious_io_errors"))
    if load is None or guard is None:
        return

    def load_overload(signature: Any, target: Any) -> Any:
        rtsys.initialize(target)
        with guard():
            return load(signature, target)

    cache.load_overload = load_overload  # type: ignore[union-attr]
