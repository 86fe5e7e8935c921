"""Nodes of a pipeline, as a person handles them: deleted, saved and restored."""

from __future__ import annotations

from kazoo.client import KazooClient

from sluice.coordination.port import Znode
from tests.support.pipelines.case import Case
from tests.support.twins.servers import ZOOKEEPERS


def znodes(made: Case, *paths: str) -> None:
    """Delete below the root, as somebody does with zkCli."""
    twin = ZOOKEEPERS.get(made.zookeeper_hosts)
    if twin is not None:
        for path in paths:
            twin.remove(f"/test/{made.schema}/{path}".rstrip("/"))
        return
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
    twin = ZOOKEEPERS.get(made.zookeeper_hosts)
    if twin is not None:
        return {path: node.data for path, (node, _) in twin.below(f"/test/{made.schema}").items()}
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
    """Put a backup in the place of what is there."""
    twin = ZOOKEEPERS.get(made.zookeeper_hosts)
    if twin is not None:
        twin.remove(f"/test/{made.schema}")
        twin.tree.nodes |= {path: (Znode(data, 0, twin.tree.now_ms), None) for path, data in nodes.items()}
        return
    client = KazooClient(made.zookeeper_hosts)
    client.start()
    try:
        client.delete(f"/test/{made.schema}", recursive=True)
        for path, data in sorted(nodes.items()):
            client.create(path, data)
    finally:
        client.stop()
        client.close()
