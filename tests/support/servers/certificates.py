"""Certificates of a test's servers, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, *names: str, subject: str = "IP:127.0.0.1") -> Path:
    """``NAME.pem`` and ``NAME.key`` in ``folder``, each its own authority, for two days.

    ``subject``: for whom they are.
    """
    for name in names:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", f"subjectAltName={subject}", "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        (folder / f"{name}.key").chmod(0o600)
    return folder
