"""Digests that are kept from the log (``verify.digest: log``): the part of the capture and of the load."""

from __future__ import annotations

from dataclasses import replace

from sluice.config.pipeline import Event, TargetConfig
from sluice.errors import ConfigError
from sluice.flows.runtime import Runtime
from sluice.model.batches import Batch
from sluice.segments.manifest import SegmentManifest
from sluice.segments.writer import LogDigester
from sluice.sources.port import DigestsLog
from sluice.targets.port import BatchInput, Target
from sluice.targets.port.digests import BatchDigests, LogDelta, keeping_digests

_NOT_COMPUTED = "its digest was not computed when it was captured (verify.digest was not log)"


def keeps_digests(runtime: Runtime) -> bool:
    """Return True if the pipeline asks for digests and its source has them."""
    return runtime.pipeline.verify.digest == "log" and not source_refuses(runtime)


def source_refuses(runtime: Runtime) -> str:
    """Return why no digest of a pipeline can be kept, "" if digests can."""
    if not isinstance(runtime.source, DigestsLog):
        return f"a source of type {runtime.pipeline.source.type} computes no digest from its log"
    lost = {Event.INSERT, Event.UPDATE, Event.DELETE} - set(runtime.pipeline.capture.events)
    if lost:
        return f"the pipeline does not capture every {min(lost)}, and so not all that happens to a table"
    if runtime.membership is not None:
        return "it belongs to a channel, whose sites are both written"
    if runtime.loads is not None:
        return "it leaves out rows that other pipelines loaded (ignore_marks)"
    if runtime.pipeline.capture.unlogged_cascades == "ignore":
        return "capture.unlogged_cascades: ignore accepts changes that the log does not have"
    return ""


def require_digests(runtime: Runtime) -> None:
    """Raise ConfigError if a pipeline keeps no digests."""
    where = "verify.digest"
    if runtime.pipeline.verify.digest != "log":
        raise ConfigError(
            f"{runtime.name} keeps no digests", where=where, hint="write verify: {digest: log} in the pipeline file"
        )
    refused = source_refuses(runtime)
    if refused:
        raise ConfigError(
            f"{runtime.name} cannot keep digests: {refused}", where=where, hint="write verify: {digest: none}"
        )


def target_refuses(config: TargetConfig, target: Target) -> str:
    """Return why a target keeps no digests, "" if it does."""
    if config.changes == "all":
        return "it gets every change, and not the newest row of each key"
    if keeping_digests(target) is None:
        return f"a target of type {config.type} keeps no digests"
    return ""


def log_digester(runtime: Runtime) -> LogDigester | None:
    """Return what computes the digests of captured rows; None if the pipeline keeps none."""
    if runtime.pipeline.verify.digest != "log":
        return None
    source = runtime.source
    return source.log_digest if isinstance(source, DigestsLog) and keeps_digests(runtime) else None


def deltas_of(manifest: SegmentManifest) -> dict[str, LogDelta]:
    """Return what the log of a batch does to the digest of each table that it changes.

    A table that a statement defines anew has a gap.
    """
    changed = {str(file.table_id) for file in manifest.files if file.inserts + file.updates + file.deletes}
    known_digests = manifest.digests
    if known_digests is None:
        return {table: LogDelta(gap=_NOT_COMPUTED) for table in changed}
    deltas = {
        table: LogDelta(digest.rows, int(digest.checksum, 16), digest.gap)
        for table, digest in known_digests.items()
        if table in changed
    }
    return deltas | {table: LogDelta(gap=_NOT_COMPUTED) for table in changed - known_digests.keys()}


def redefined(manifest: SegmentManifest) -> tuple[dict[str, str], str]:
    """Return the tables that statements of a batch define anew, with the reason; and why it may be any table, ""
    otherwise.
    """
    reasons: dict[str, str] = {}
    every = ""
    for ddl in manifest.ddl:
        named = {ddl.table} if ddl.table else set()
        for change in ddl.changes:
            named |= {".".join(place) for place in (change["table"], change["renamed_to"]) if place}
        reasons |= dict.fromkeys(named, "the definition of the table changed")
        if not named:
            every = "a statement changed definitions, and does not say of which tables"
    return reasons, every


def batch_digests(manifest: SegmentManifest | None, record: Batch, batch: BatchInput, *, empty: bool) -> BatchDigests:
    """Return what a batch does to the kept digests of a target.

    ``manifest``: of its segments; None: it is no longer stored. ``empty``: the target gets nothing of it.
    """
    lost = "the segments of the batch are no longer stored" if manifest is None else ""
    if record.dropped:
        lost = "the batch was dropped"
    if lost or manifest is None:
        return BatchDigests(batch.number, batch.held, all_unknown=lost, source_unknown=lost)
    if record.snapshot:
        return BatchDigests(batch.number, batch.held, all_unknown="the target started from the snapshot")
    if manifest.digests is None:
        return BatchDigests(batch.number, batch.held, all_unknown=_NOT_COMPUTED, source_unknown=_NOT_COMPUTED)
    deltas, (unknown, every) = deltas_of(manifest), redefined(manifest)
    deltas |= {table: LogDelta(gap=why) for table, why in unknown.items()}
    dumped = [
        *(file.table_id for file in manifest.files if file.reads),
        *(replace.table_id for replace in manifest.replaces),
    ]
    unknown |= {str(table): "a dump wrote rows of the table" for table in dumped}
    own_digests = BatchDigests(
        batch.number, batch.held, deltas, all_unknown=every, source_unknown=every, stretch=manifest.stretch
    )
    return own_digests if empty else replace(own_digests, reader=batch.reader, tables=batch.tables, unknown=unknown)
