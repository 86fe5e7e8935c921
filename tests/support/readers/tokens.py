"""Tokens of readers who may read something, everything, and something else."""

from __future__ import annotations

from pathlib import Path

from sluice.config.readers import hashed
from tests.support.pipelines.case import Case

SOME, EVERY, ELSEWHERE = "token-of-some", "token-of-every", "token-of-elsewhere"


def readers_file(made: Case, *tokens: str) -> Path:
    """``SOME`` reads orders, ``EVERY`` all of the pipeline, ``ELSEWHERE`` another pipeline."""
    may_read = {
        SOME: f'{{case: ["{made.schema}\\\\.orders"]}}',
        EVERY: '{case: [".*"]}',
        ELSEWHERE: '{other: [".*"]}',
    }
    lines = [
        f"  - {{name: {token.replace('-', '_')}, token_sha256: {hashed(token)}, may_read: {may_read[token]}}}"
        for token in tokens
    ]
    path = made.folder / "rules" / "readers.yaml"
    path.write_text("\n".join(["version: 1", "readers:", *lines, ""]))
    return path
