"""Compiled functions: compiled once, kept on disk, and loaded by a new process without the compiler.

Numba is imported when a kernel is called first: a process that calls none has 0.4 s and 70 MB less to load.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache, update_wrapper
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, TypeVar

_F = TypeVar("_F")
_building = threading.RLock()


def kernel(function: _F) -> _F:
    """Compile for this processor, without the interpreter lock, and keep the result on disk (per source, processor and
    version of Numba).

    The function must not make arrays. So none of those it gets is counted, which takes four locked instructions for
    each call of a kernel by another: for what runs once an event or a row, more than its work.
    """
    return Kernel(function, makes_arrays=False)  # type: ignore[return-value]


def kernel_with_arrays(function: _F) -> _F:
    """Compile a :func:`kernel` that creates arrays."""
    return Kernel(function, makes_arrays=True)  # type: ignore[return-value]


def before_first_compilation(callback: Callable[[], None]) -> None:
    """Call a function before this process compiles the next kernel that is not on disk."""
    from numba.core import event

    class Compilation(event.Listener):  # type: ignore[misc]
        def on_start(self, event: event.Event) -> None:
            if calls:
                calls.pop()()

        def on_end(self, event: event.Event) -> None:
            pass

    calls = [callback]
    event.register("numba:compile", Compilation())


class Kernel:
    """A kernel, for Python and for other kernels."""

    def __init__(self, function: Any, *, makes_arrays: bool) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._makes_arrays = makes_arrays

    def __call__(self, *arguments: Any) -> Any:
        """Run it, compiled."""
        return self._compiled(*arguments)

    def __reduce__(self) -> str:
        """Pickle it by its name, as a function."""
        return self.py_func.__qualname__  # type: ignore[no-any-return]

    @property
    def _numba_type_(self) -> Any:
        """The type by which Numba knows a compiled function that another one calls."""
        return self._compiled._numba_type_

    def __getattr__(self, name: str) -> Any:
        return self._built() if name == "_compiled" else getattr(self._compiled, name)

    def _built(self) -> Any:
        """Return Numba's dispatcher, which is ``_compiled`` from now on."""
        with _building:
            if "_compiled" not in self.__dict__:
                import numba as nb

                compiled = nb.njit(nogil=True, cache=True, _nrt=self._makes_arrays)(self.py_func)
                _load_quickly(compiled)
                _follow_callees(compiled)
                self._compiled = compiled
            return self.__dict__["_compiled"]


class Deferred:
    """A kernel or intrinsic of a module that imports Numba. Building a kernel that uses it imports the module."""

    def __init__(self, module: str, name: str) -> None:
        self._place = module, name

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel, compiled."""
        return self._target(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @property
    def _target(self) -> Any:
        module, name = self._place
        return getattr(import_module(module), name)

    @property
    def _numba_type_(self) -> Any:
        """The type by which Numba knows the target."""
        from numba.core.registry import cpu_target

        context = cpu_target.typing_context
        context.refresh()  # for intrinsics that were defined just now
        return context.resolve_value_type(self._target)


def _load_quickly(compiled: Any) -> None:
    """Skip what Numba does before it looks into its cache: it loads all that it could compile with (0.25 s of a
    process's start).

    Compiled code needs only the runtime; if there is none on disk, Numba loads the rest before it compiles. A version
    of Numba that is built differently keeps its own way.
    """
    cache = getattr(compiled, "_cache", None)
    load, guard = (getattr(cache, name, None) for name in ("_load_overload", "_guard_against_spurious_io_errors"))
    if load is None or guard is None:
        return

    from numba.core.runtime import rtsys

    def load_overload(signature: Any, target: Any) -> Any:
        rtsys.initialize(target)
        with guard():
            return load(signature, target)

    cache.load_overload = load_overload  # type: ignore[union-attr]


def _follow_callees(compiled: Any) -> None:
    """Recompile a kernel when kernels that it calls or constants that it reads change.

    Its file on disk holds those, too.

    Numba itself checks only the file that contains the function.
    """
    file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        file._source_stamp = (file._source_stamp, *sorted(_parts(compiled.py_func)))


def _parts(function: FunctionType) -> set[str]:
    """Return the files and constants that a function is compiled from."""
    parts: set[str] = set()
    waiting, met = [function], set()
    while waiting:
        function_type = waiting.pop()
        if function_type in met:
            continue
        met.add(function_type)
        parts.add(_stamp(function_type.__code__.co_filename))
        for name in _names(function_type.__code__):
            value = function_type.__globals__.get(name)
            callee = getattr(value, "py_func", None) or getattr(value, "_defn", None)  # a kernel, an intrinsic
            if isinstance(callee, FunctionType):
                waiting.append(callee)
            elif isinstance(value, int | float | str | bytes | tuple):
                parts.add(f"{name}={value!r}")
    return parts


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


@cache
def _stamp(file: str) -> str:
    try:
        stat = os.stat(file)
    except OSError:
        return file
    return f"{os.path.basename(file)}:{stat.st_mtime_ns}:{stat.st_size}"
