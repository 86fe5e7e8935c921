"""The replica ids of one capture: its own, and those of the other dump connections that it has open.

A server throws out the older of two replicas with one id. So each dump of a capture has an id of its own, and those
other than the pipeline's (``source.server_id``) are not its neighbours, which other pipelines or replicas may have, but
far away, derived from it.
"""

from __future__ import annotations

import os
import zlib

from sluice.config.pipeline import PipelineConfig

AUTO_READERS = 4
"""Readers that ``capture.readers: auto`` takes at most; each is a dump thread on the source."""
MOST_READERS = 64
"""Readers that ``capture.readers`` may ask for."""
_LOOKAHEAD, _PREPARED, _READERS = 0, 1, 2
_CHECK = _READERS + MOST_READERS
_FIRST, _COUNT = 2**31, 2**31 - 1


def replica_id(pipeline: PipelineConfig) -> int:
    """Return the pipeline's own id: as configured, else derived from its name, in 2^31..2^32-1, which is seldom
    used.
    """
    configured = pipeline.source.server_id
    return configured if configured != "auto" else 2**31 + zlib.crc32(pipeline.pipeline.encode()) % 2**31


def readers_of(pipeline: PipelineConfig) -> int:
    """Return how many connections read closed log files in parallel.

    It is as configured, else one per core, at most ``AUTO_READERS``.
    """
    configured = pipeline.capture.readers
    return configured if configured != "auto" else min(len(os.sched_getaffinity(0)), AUTO_READERS)


def lookahead_id(server_id: int) -> int:
    """Return the id of the dump that looks for statements further on."""
    return _beside(server_id, _LOOKAHEAD)


def prepared_id(server_id: int) -> int:
    """Return the id of the dump that reads prepared XA transactions again."""
    return _beside(server_id, _PREPARED)


def check_id(server_id: int) -> int:
    """Return the id of the dump by which ``sluice check`` looks whether the log is still the same."""
    return _beside(server_id, _CHECK)


def reader_id(server_id: int, number: int) -> int:
    """Return the id of reader ``number`` (from 0) of closed files; the first has the pipeline's own."""
    return server_id if number == 0 else _beside(server_id, _READERS + number)


def ids_of(server_id: int, readers: int) -> dict[int, str]:
    """Return all ids, with the purpose of each."""
    return {
        server_id: "the pipeline's own",
        lookahead_id(server_id): "for looking ahead",
        prepared_id(server_id): "for prepared XA transactions",
        check_id(server_id): "for checks",
        **{reader_id(server_id, n): f"of reader {n + 1}" for n in range(1, readers)},
    }


def _beside(server_id: int, number: int) -> int:
    """Return one of a run of ids in 2^31..2^32-2 that does not contain ``server_id``."""
    begin = zlib.crc32(f"{server_id}".encode())
    ids = (_FIRST + (begin + place) % _COUNT for place in range(_READERS + MOST_READERS + 3))
    return [candidate for candidate in ids if candidate != server_id][number]
