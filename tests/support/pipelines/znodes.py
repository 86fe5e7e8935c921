"""Nodes of a pipeline, as a person handles them: deleted, saved and restored."""

from __future__ import annotations

from kazoo.client import KazooClient

from tests.support.pipelines.case import Case


def znodes(made: Case, *paths: str) -> None:
    """Delete below the root, as somebody does with zkCli."""
    client = KazooClient(made.zookeeper_hosts)
    client.start()
    try:
        for path in paths:
            client.delete(f"/test/{made.schema}/{path}".rstrip("/"), recursive=True)
    finally:
        client.stop()
        client.close()


def saved(made: Case) -> dict[str, bytes]:
    """All nodes of the pipeline, as a backup of ZooKeeper has them."""
    client = KazooClient(made.zookeeper_hosts)
    client.start()
    found: dict[str, bytes] = {}
    try:
        todo = [f"/test/{made.schema}"]
        while todo:
            path = todo.pop()
            found[path] = client.get(path)[0]
            todo += [f"{path}/{name}" for name in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return found


def restored(made: Case, nodes: dict[str, bytes]) -> None:
    client = KazooClient(made.zookeeper_hosts)
    client.start()
    try:
        client.delete(f"/test/{made.schema}", recursive=True)
        for path, data in sorted(nodes.items()):
            client.create(path, data)
    finally:
        client.stop()
        client.close()
