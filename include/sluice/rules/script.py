"""A rule's file: its text travels with the work, is compiled once a process and content, and its errors name its own
lines.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from sluice.config.engine import RuleConfig, RuleKind
from sluice.errors import RuleError
from sluice.rules import guard, params

FUNCTION = "transform"

_cache: dict[tuple[str, str], Loaded] = {}
_lock = threading.Lock()
_CACHE_LIMIT = 256
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)


RETRIED = "the batch is retried (once no attempt is left: Clear on the red task, or *Retry now* on the page)"
"""What happens to a batch whose rule was mended."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded rule file: its ``transform`` (None for SQL) and its declared parameters (None: any)."""

    function: Callable[..., Any] | None
    params: type[BaseModel] | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and the contents of its file when the batch was planned. Picklable.

    Attributes:
        path: the file, for errors; text: its contents.
        engine: ``engine.yaml:line`` of the rule; lines: those of its parameters.
    """

    config: RuleConfig
    path: str
    text: str
    engine: str = ""
    lines: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """The name in engine.yaml."""
        return self.config.name

    @property
    def kind(self) -> RuleKind:
        """The language of the rule. Built-in rules are of type arrow."""
        return RuleKind.ARROW if self.config.builtin else self.config.type

    @property
    def home(self) -> str:
        """``file:line`` to look at when no better line is known."""
        return self.engine if self.config.builtin else f"{self.path}:1"

    @property
    def digest(self) -> str:
        """Changes whenever the contents do."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def function(self) -> Callable[..., Any]:
        """Return the rule's ``transform``.

        It is loaded once per process and content. Raises RuleError with file and line.
        """
        function = self.loaded().function
        assert function is not None
        return function

    def loaded(self) -> Loaded:
        """See :class:`Loaded`. Raises RuleError with file and line."""
        key = (self.path, self.digest)
        with _lock:
            cached = _cache.get(key)
        if cached is None:  # without the lock: what is loaded may never return
            loaded = self._load_sql() if self.kind is RuleKind.SQL else self._load()
            with _lock:
                if len(_cache) >= _CACHE_LIMIT:
                    _cache.clear()
                cached = _cache.setdefault(key, loaded)
        return cached

    @property
    def limit_s(self) -> float:
        """Longest time for one call, in seconds."""
        return self.config.timeout.total_seconds() if self.config.timeout is not None else guard.DEFAULT_LIMIT_S

    def params(self) -> params.Params:
        """Return the parameters of engine.yaml, checked against those the file declares.

        Raises RuleError that names engine.yaml's line.
        """
        values, problems = params.checked(self.loaded().params, self.config.params)
        if problems:
            name, text = problems[0]
            more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
            line = dict(self.lines).get(name.split(".")[0])
            raise RuleError(
                f"rule {self.name!r}: params.{name}: {text}{more}",
                where=f"{self.engine.rpartition(':')[0]}:{line}" if line else self.engine or self.home,
                hint=f"it takes {'; '.join(params.described(self.loaded().params))}",
            )
        return values

    def _load(self) -> Loaded:
        module = ModuleType(f"sluice_rule_{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}_{self.digest[:12]}")
        module.__file__ = self.path
        try:
            code = compile(self.text, self.path, "exec")
        except SyntaxError as error:
            raise RuleError(
                f"rule {self.name!r} is not valid Python: {error.msg}",
                where=f"{self.path}:{error.lineno or 1}",
                hint=f"fix the file; {RETRIED}",
            ) from error
        except (ValueError, RecursionError, MemoryError) as error:  # a null byte; nesting
            raise RuleError(f"rule {self.name!r} is not valid Python: {error}", where=f"{self.path}:1") from error
        sys.modules[module.__name__] = module  # dataclasses and typing look their module up

        def run() -> type[BaseModel] | None:
            exec(code, module.__dict__)  # noqa: S102 - running the user's rule is the purpose
            return params.declared_in(module)

        try:
            declared = guard.call(run, label=self.name, seconds=self.limit_s)
        except guard.Escaped as escaped:
            raise self.error(escaped.error, "could not be loaded") from None
        except Exception as error:
            raise self.error(error, "could not be loaded") from error
        function = getattr(module, FUNCTION, None)
        if not callable(function):
            raise RuleError(
                f"rule {self.name!r} has no function {FUNCTION}(row, context)",
                where=f"{self.path}:1",
                hint=f"define it: def {FUNCTION}(row, context): return row",
            )
        return Loaded(function, declared)

    def _load_sql(self) -> Loaded:
        import duckdb

        try:
            statements = duckdb.extract_statements(self.text)
        except duckdb.Error as error:
            raise self.error(error, "is not valid SQL") from error
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise RuleError(
                f"rule {self.name!r} has to be one SELECT; it is {len(statements)} statements"
                if len(statements) != 1
                else f"rule {self.name!r} has to be a SELECT",
                where=f"{self.path}:1",
                hint="write SELECT * FROM rows; helpers go into WITH",
            )
        try:
            declared = params.declared_in_sql(self.text)
        except ValueError as error:
            line = re.match(r"line (\d+)", str(error))
            raise RuleError(f"rule {self.name!r}: {error}", where=f"{self.path}:{line[1] if line else 1}") from error
        named = statements[0].named_parameters
        unknown = sorted(set(named) - set(declared.model_fields if declared else self.config.params))
        if unknown:
            number = next((i for i, text in enumerate(self.text.splitlines(), 1) if f"${unknown[0]}" in text), 1)
            raise RuleError(
                f"rule {self.name!r} uses ${unknown[0]}, which is no parameter of it",
                where=f"{self.path}:{number}",
                hint=f"declare it at the top of the file: -- param {unknown[0]}: str = …",
            )
        return Loaded(None, declared)

    def line_of(self, error: BaseException) -> str:
        """Return ``file:line`` of an exception: the innermost line in the user's file."""
        if self.config.builtin:
            return self.engine
        if isinstance(error, guard.Overrun):
            lines = [frame.lineno for frame in error.stack if frame.filename == self.path]
            return f"{self.path}:{lines[-1] if lines else 1}"
        if self.kind is RuleKind.SQL:
            line = _LINE.search(str(error))
            return f"{self.path}:{line[1] if line else 1}"
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.path]
        return f"{self.path}:{lines[-1] if lines else 1}"

    def error(self, error: BaseException, what: str, *, withheld: bool = False) -> RuleError:
        """Return the RuleError for an exception that the user's code raised.

        ``withheld``: its text may hold values that must not be shown.
        """
        if isinstance(error, guard.Overrun):
            return RuleError(
                f"rule {self.name!r} {what}: {error}",
                where=self.line_of(error),
                hint=f"correct the rule, or give it more time in engine.yaml (`timeout: 30m`); {RETRIED}",
            )
        text = str(error).split("\n\nLINE ")[0] if self.kind is RuleKind.SQL else str(error)
        reason = f"{type(error).__name__}: {text}"
        if isinstance(error, SystemExit):
            reason = f"it called sys.exit({text})"
        if withheld:
            reason = f"{type(error).__name__} (its text is withheld: the table has masked columns)"
        return RuleError(
            f"rule {self.name!r} {what}: {reason}",
            where=self.line_of(error),
            hint=f"fix the rule; {RETRIED}"
            + ("; `sluice rules test` shows values on your own data" if withheld else ""),
        )
