"""Many pipelines of one source: a table each, in one schema; their files, and a first drain of each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config.loading import load_pipeline
from sluice.flows.capture.drain import drain
from sluice.flows.runtime import Runtime
from sluice.orchestration.triggers import LogMovedTrigger
from tests.support.pipelines.case import Case, case


@dataclass
class ManyPipelines:
    """``paths``: of the pipelines ``p0``, ``p1``, ...; each captures the table of its name."""

    made: Case
    paths: list[Path]

    def runtime(self, number: int) -> Runtime:
        return Runtime.build(load_pipeline(self.paths[number]), resolver=self.made.resolver, runner="local")

    def begin(self) -> None:
        """The first drain of each: nothing is in the log for it."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._begin, range(len(self.paths))))

    def _begin(self, number: int) -> None:
        drain(self.runtime(number), claim="first", idle_wait_s=0.0)

    def change(self, number: int) -> None:
        """One row of a pipeline's table."""
        self.made.source.execute(f"INSERT INTO `{self.made.schema}`.p{number} (v) VALUES ('x')")

    def waiting(self, numbers: Sequence[int]) -> dict[int, asyncio.Task[Any]]:
        """The triggers of these pipelines, as the triggerer runs them. Call it in its loop."""
        return {n: asyncio.ensure_future(anext(LogMovedTrigger(str(self.paths[n])).run())) for n in numbers}


@contextlib.contextmanager
def many_pipelines(
    folder: Path,
    source: Any,
    target: Any,
    zookeeper: Any,
    schema: str,
    count: int,
    extra: str = "",
    *,
    tables: int = 1,
    **options: Any,
) -> Iterator[ManyPipelines]:
    """``schema`` exists on both servers; ``tables``: of each pipeline, ``p0``, ``p0_1``, ``p0_2``, ...; ``options``: of
    :func:`case`.
    """
    names = [f"p{number}" for number in range(count)]
    suffixes = ["", *(f"_{number}" for number in range(1, tables))]
    for server in (source, target):
        server.execute(
            *(
                f"CREATE TABLE `{schema}`.{name}{suffix} (id BIGINT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(20))"
                for name in names
                for suffix in suffixes
            )
        )
    with case(folder, source, target, zookeeper, schema, extra=extra, **options) as made:
        made.path.unlink()
        paths = []
        for name in names:
            text = made.yaml.replace("pipeline: case", f"pipeline: {name}").replace(
                f'"{schema}\\\\..*"', f'"{schema}\\\\.{name}(_.*)?"'
            )
            paths.append(folder / f"{name}.yaml")
            paths[-1].write_text(text, encoding="utf-8")
        yield ManyPipelines(made, paths)
