"""Tokens of three clouds as passwords, by their own clients."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sluice.config.connections import Endpoint
from sluice.config.credentials import password_of
from sluice.errors import CredentialsUnavailable

SCOPE = "https://ossrdbms-aad.database.windows.net"


@contextmanager
def service() -> Iterator[tuple[str, list[str]]]:
    """A service of tokens: its address, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            asked.append(f"{self.path} {body}")
            expires = {"expires_in": 3600, "expires_on": str(int(time.time()) + 3600)}
            answer = {"access_token": f"token-{len(asked)}", "token_type": "Bearer", "resource": SCOPE, **expires}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def endpoint(credentials: str, kind: str = "mysql", **extra: str) -> Endpoint:
    return Endpoint("db", kind, "db.example.com", user="sluice", extra={"credentials": credentials, **extra})


@pytest.mark.parametrize(("kind", "port"), [("mysql", 3306), ("postgres", 5432)])
def test_a_token_of_rds_is_signed_here(kind: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    token = password_of(endpoint("rds_iam", kind, region_name="eu-central-1"))
    assert token.startswith(f"db.example.com:{port}/?Action=connect&DBUser=sluice&")
    assert "eu-central-1%2Frds-db%2Faws4_request" in token
    assert "X-Amz-Signature=" in token
    assert "s3cret" not in token


def test_a_login_of_aws_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(CredentialsUnavailable, match="'rds_iam' gave no password: NoCredentialsError"):
        password_of(endpoint("rds_iam", region_name="eu-central-1"))


def test_a_token_of_cloud_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with service() as (url, asked):
        account = {"type": "service_account", "client_email": "s@example.com", "private_key": key.decode()}
        account |= {"token_uri": f"{url}/token", "project_id": "p"}
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        assert [password_of(endpoint("cloud_sql_iam")) for _ in range(2)] == ["token-1", "token-2"]
        assert "grant-type%3Ajwt-bearer" in asked[0]


def test_a_token_of_entra(monkeypatch: pytest.MonkeyPatch) -> None:
    with service() as (url, asked):
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{url}/identity")
        monkeypatch.setenv("IDENTITY_HEADER", "header")
        assert password_of(endpoint("entra", "postgres")).startswith("token-")
        assert any("ossrdbms-aad.database.windows.net" in request for request in asked)
