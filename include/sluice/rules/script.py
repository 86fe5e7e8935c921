"""A rule's file: its text travels with the work, is compiled once a process and content, and its errors name its own lines."""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sluice.errors import RuleError
from sluice.rules.engine import RuleConfig

FUNCTION = "transform"

_cache: dict[tuple[str, str], Callable[..., Any]] = {}
_lock = threading.Lock()
_CACHE_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and the contents of its file when the batch was planned. Picklable."""

    config: RuleConfig
    path: str
    text: str

    @property
    def name(self) -> str:
        """The name in engine.yaml."""
        return self.config.name

    @property
    def digest(self) -> str:
        """Changes whenever the contents do."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def function(self) -> Callable[..., Any]:
        """The rule's ``transform``. Loaded once a process and content. Raises RuleError with file and line."""
        key = (self.path, self.digest)
        with _lock:
            found = _cache.get(key)
            if found is None:
                if len(_cache) >= _CACHE_LIMIT:
                    _cache.clear()
                found = _cache[key] = self._load()
        return found

    def _load(self) -> Callable[..., Any]:
        module = ModuleType(f"sluice_rule_{self.name}")
        module.__file__ = self.path
        try:
            code = compile(self.text, self.path, "exec")
        except SyntaxError as error:
            raise RuleError(
                f"rule {self.name!r} is not valid Python: {error.msg}",
                where=f"{self.path}:{error.lineno or 1}",
                hint="mend the file; the batch stays and is tried again",
            ) from error
        except ValueError as error:  # a null byte
            raise RuleError(f"rule {self.name!r} is not valid Python: {error}", where=f"{self.path}:1") from error
        try:
            exec(code, module.__dict__)  # noqa: S102 - running the user's rule is the purpose
        except Exception as error:
            raise self.error(error, "could not be loaded") from error
        function = getattr(module, FUNCTION, None)
        if not callable(function):
            raise RuleError(
                f"rule {self.name!r} has no function {FUNCTION}(row, context)",
                where=f"{self.path}:1",
                hint=f"define it: def {FUNCTION}(row, context): return row",
            )
        return function  # type: ignore[no-any-return]

    def error(self, error: Exception, what: str) -> RuleError:
        """The RuleError for an exception that the user's code raised: its line is the innermost one in the user's file."""
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.path]
        return RuleError(
            f"rule {self.name!r} {what}: {type(error).__name__}: {error}",
            where=f"{self.path}:{lines[-1] if lines else 1}",
            hint="mend the rule; the batch stays and is tried again",
        )
