"""The demonstration's receiver: an HTTP target fills it, and repeats are seen and not applied twice."""

from __future__ import annotations

import threading
from pathlib import Path

from devstack.http_receiver import HttpReceiver, serve
from devstack.kinds import KINDS
from sluice.config.connections import parse_connection
from sluice.targets.http.target import HttpTarget
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.benches.http_bench import HttpBench


class At:
    url = "http://127.0.0.1"


def test_what_a_target_sends_is_counted(tmp_path: Path) -> None:
    receiver = HttpReceiver(tmp_path)
    server = serve(receiver.file, 0)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    kind = KINDS["http"]
    try:
        bench = HttpBench(At(), "all", dict(kind.settings["options"]))  # type: ignore[arg-type]
        bench.connection = parse_connection("target", kind.connection(receiver))
        assert isinstance(bench.target(), HttpTarget)
        table, pipe = people("shop", "orders"), Pipe(bench)
        batch = pipe.deliver((
            table,
            [new(1, "a", 1), new(2, "b", 1), changed((1, "a", 1), (3, "a", 1)), gone(2, "b", 1)],
        ))
        pipe.write(batch)  # again
        assert kind.rows(receiver, "shop", ("orders", "customers")) == {"orders": 1, "customers": 0}
        first, _, document = kind.sample(receiver, "shop")
        requests = int(first.split()[0])
        assert first.startswith(f"{requests} requests; {requests} of them came again")
        assert '"email": "a"' in document
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
