"""The certificate of a migration: what was compared when writes moved, signed with a key of the user's."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sluice.coordination.migrations import Phase
from sluice.errors import ConfigError, SegmentError
from sluice.operations.migrate.handover import read_compared
from sluice.operations.migrate.plan import plan
from sluice.operations.migrate.sites import Sites

_MADE_BY = "openssl genpkey -algorithm ed25519 -out migration.pem"


def certificate(sites: Sites, key_file: Path, *, by: str) -> dict[str, Any]:
    """Return the signed certificate. Raises ConfigError before the switch, or for a key that cannot sign."""
    migration, key = sites.read(), _private_key(key_file)
    if migration.phase not in {Phase.SWITCHED, Phase.FINISHED}:
        raise ConfigError(
            f"the migration is {migration.phase}: nothing has moved that could be certified",
            hint=f"sluice migrate switch {sites.name}",
        )
    try:
        compared = read_compared(sites)
    except SegmentError as error:
        raise ConfigError(f"the comparison of the switch is no longer stored: {error.message}") from error
    planned = plan(sites, is_started=True)
    document = {
        "document": "sluice migration certificate",
        "version": 1,
        "migration": sites.name,
        "from": planned.servers[0],
        "to": planned.servers[1],
        "phase": str(migration.phase),
        "issued": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "by": by,
        "compared": compared,
        "not_moved": [{"kind": entry.kind, "name": entry.name, "why": entry.why} for entry in planned.by_hand],
    }
    public = _raw(key.public_key())
    signature = {"algorithm": "ed25519", "public_key": _text(public), "value": _text(key.sign(_signed(document)))}
    return {**document, "signature": signature}


def verify_certificate(document: Mapping[str, Any], key_file: Path | None) -> str:
    """Return the fingerprint of the key that signed. Raises ConfigError if the certificate is not what was signed.

    ``key_file``: the public key that has to have signed; None: whichever the certificate names.
    """
    try:
        signature = document["signature"]
        public, value = base64.b64decode(signature["public_key"]), base64.b64decode(signature["value"])
        key = Ed25519PublicKey.from_public_bytes(public)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("this is no certificate of a migration: it has no signature") from error
    if key_file is not None and _raw(_public_key(key_file)) != public:
        raise ConfigError(
            f"another key signed the certificate: {_fingerprint(public)}", where=str(key_file),
            hint="ask who issued it for the public key",
        )  # fmt: skip
    try:
        key.verify(value, _signed({name: entry for name, entry in document.items() if name != "signature"}))
    except InvalidSignature as error:
        raise ConfigError("the certificate was changed after it was signed") from error
    return _fingerprint(public)


def page(document: Mapping[str, Any]) -> str:
    """Return the certificate as a page of HTML, which needs nothing else."""

    def row(*cells: object, tag: str = "td") -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    compared = document["compared"]
    tables = "".join(
        row(
            table["table"],
            f"{table['rows']:,}",
            table.get("from", ""),
            table.get("to", ""),
            "digest" if table["way"] == "digest" else f"all rows ({table['way']})",
        )
        for table in compared["tables"]
    )
    objects = "".join(row(entry["kind"], entry["name"], entry["why"]) for entry in document["not_moved"])
    name = html.escape(str(document["migration"]))
    facts = {
        "From": document["from"], "To": document["to"], "Compared at": compared["at"],
        "Position in the old server's log": json.dumps(compared["position"]), "Issued": document["issued"],
        "By": document["by"], "Key": _fingerprint(base64.b64decode(document["signature"]["public_key"])),
    }  # fmt: skip
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Migration {name}</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.3em .6em;text-align:left}</style>"
        f"<h1>Migration {name}</h1><p>While no server took writes, both had the same rows in each of these tables.</p>"
        f"<table>{''.join(row(what, value) for what, value in facts.items())}</table><h2>Tables</h2><table>"
        f"{row('table', 'rows', 'digest at the old server', 'digest at the new server', 'compared by', tag='th')}"
        f"{tables}</table><h2>Not moved</h2><table>{row('kind', 'name', 'why', tag='th')}{objects}</table>"
        "<p><code>sluice migrate verify-certificate</code> checks the signature of the JSON file beside this page.</p>"
    )


def _signed(document: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: the document in the one form that its values have."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"the key cannot be read: {type(error).__name__}", where=str(path), hint=f"`{_MADE_BY}` makes one"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("the key is not of the kind Ed25519", where=str(path), hint=f"`{_MADE_BY}` makes one")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the public key cannot be read: {type(error).__name__}", where=str(path),
            hint="`openssl pkey -in migration.pem -pubout` prints it",
        ) from error  # fmt: skip
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError("the public key is not of the kind Ed25519", where=str(path))
    return key


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _fingerprint(public: bytes) -> str:
    return f"SHA256:{hashlib.sha256(public).hexdigest()}"
