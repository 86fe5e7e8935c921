"""The file of readers: who may read what from the subscription service. A contract: keys may be added, not bent.

Decision: a token is 32 random bytes, and the file has its SHA-256, as services store tokens that they make. scrypt and
its like make guesses expensive, which helps where people choose secrets; 256 random bits cannot be guessed, and a slow
hash at each call would let anybody who can connect keep the service busy.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sluice.config.loading import load_model
from sluice.config.pipeline import Identifier, Regex, StrictModel, whole


class ReaderConfig(StrictModel):
    """One reader."""

    name: Identifier = Field(description="For messages and the log.")
    token_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the token, as `sluice serve --new-token` prints it."
    )
    may_read: dict[Identifier, tuple[Regex, ...]] = Field(
        description="By pipeline: regular expressions on schema.table as readers see it, anchored."
    )


class ReadersConfig(StrictModel):
    """The file."""

    version: Annotated[Literal[1], BeforeValidator(whole)] = Field(1, description="Version of this file format.")
    readers: tuple[ReaderConfig, ...] = Field((), description="Who may read; without a line here, no one may.")

    @model_validator(mode="after")
    def _each_once(self) -> ReadersConfig:
        for what, values in (
            ("name", [reader.name for reader in self.readers]),
            ("token", [reader.token_sha256 for reader in self.readers]),
        ):
            if len(set(values)) != len(values):
                raise ValueError(f"two readers have the same {what}")
        return self


def load_readers(path: Path) -> ReadersConfig:
    """Load the file of readers. Raises ConfigError with file and line."""
    return load_model(path, ReadersConfig)


def new_token() -> tuple[str, str]:
    """Return a new token, and its hash for the file."""
    token = secrets.token_urlsafe(32)
    return token, hashed(token)


def hashed(token: str) -> str:
    """Return the hash of a token, which the file holds in its place."""
    return hashlib.sha256(token.encode()).hexdigest()
