"""The numbered batches of a pipeline, and which run delivers which of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from sluice.coordination.layout import BATCH, Layout, claim_suffix
from sluice.coordination.pause_switch import PauseState, PauseSwitch
from sluice.coordination.port import Conflict, Create, Put, Remove, Step, Znodes, committed
from sluice.errors import SegmentError
from sluice.model.batches import Batch, BatchState

_REMOVED_AT_ONCE = 100
"""Batch nodes that one transaction removes."""


class Batches:
    """The batches of one pipeline."""

    def __init__(self, znodes: Znodes, layout: Layout, pause_switch: PauseSwitch) -> None:
        self._z = znodes
        self._at = layout
        self._pause_switch = pause_switch

    def get(self, number: int) -> Batch | None:
        """Return one batch, or None if it is not (or no longer) known."""
        stored = self._read(number)
        return stored[0] if stored else None

    def _read(self, number: int) -> tuple[Batch, int] | None:
        """Return a batch and the version of its node."""
        path = self._at.batch(number)
        node = self._z.get(path)
        return (BATCH.parse(path, node.data, Batch.from_json), node.version) if node else None

    def _written(self, batch: Batch, version: int) -> Put:
        """Return the step that writes a batch over what is there at ``version``."""
        return Put(self._at.batch(batch.number), BATCH.encode(batch.to_json()), version)

    def require(self, number: int) -> Batch:
        """Return one batch (:meth:`get`). Raises SegmentError if it is not known."""
        batch = self.get(number)
        if batch is None:
            raise SegmentError(
                f"batch {number} of {self._at.pipeline} is not in the store of positions",
                where=self._at.batch(number),
                hint=f"`sluice status {self._at.pipeline}` lists the batches there are",
            )
        return batch

    def numbers(self) -> list[int]:
        """Return the numbers of all known batches, ascending."""
        return [int(name) for name in self._z.children(self._at.batches)]

    # -- steps of a larger transaction ---------------------------------------------------------------------------------

    def created(self, batch: Batch) -> list[Step]:
        """Return the steps that record a new batch and its claim."""
        return [
            Create(self._at.batch(batch.number), BATCH.encode(batch.to_json())),
            Create(self._at.claim(batch.number, batch.claim)),
        ]

    def dropped(self, number: int) -> list[Step]:
        """Return the step after which a batch counts as delivered and is loaded nowhere; none if it is not known."""
        stored = self._read(number)
        if stored is None:
            return []
        batch, version = stored
        return [self._written(replace(batch, dropped=True, changeset=None, stages=()), version)]

    # -- claims --------------------------------------------------------------------------------------------------------

    def claimed(self, claim: str) -> Batch | None:
        """Return the newest batch that ``claim`` delivers: what a retried capture gets again.

        Reads no batch of another claim.
        """
        if self._z.get(self._at.claims) is None:
            self._index_claims()
        suffix = claim_suffix(claim)
        for name in reversed(self._z.children(self._at.claims)):
            if name.endswith(suffix):
                batch = self.get(self._at.claimed_batch(name))
                if batch and batch.claim == claim:
                    return batch
        return None

    def claimed_all(self, claim: str) -> list[Batch]:
        """Return all batches that ``claim`` delivers and that are still known, oldest first."""
        return [batch for batch in map(self.get, self.claimed_numbers(claim)) if batch and batch.claim == claim]

    def claimed_numbers(self, claim: str) -> list[int]:
        """Return the numbers of the batches that ``claim`` got, ascending.

        Another claim may have resumed some since.
        """
        suffix = claim_suffix(claim)
        return sorted(self._at.claimed_batch(name) for name in self.claims() if name.endswith(suffix))

    def claims(self) -> list[str]:
        """Return the names of the nodes of all claims."""
        return self._z.children(self._at.claims)

    def _index_claims(self) -> None:
        """Create the nodes that :meth:`created` writes today, once, for a state of an older version."""
        batches = [batch for batch in map(self.get, self.numbers()) if batch]
        steps: list[Step] = [Create(self._at.claims)]
        steps += [Create(self._at.claim(batch.number, batch.claim)) for batch in batches]
        with suppress(Conflict):  # another process was first
            self._z.transact(steps)

    def reclaim(self, number: int, claim: str) -> Batch | None:
        """Let ``claim`` deliver a batch whose run is gone. None if the batch changed meanwhile."""
        path = self._at.claim(number, claim)
        exists = self._z.get(path) is not None
        return self.rewrite(number, lambda batch: replace(batch, claim=claim), [] if exists else [Create(path)])

    # -- what became of a batch ----------------------------------------------------------------------------------------

    def merged(self, number: int, changeset: str, *, under: PauseState | None = None) -> Batch:
        """Record the changeset of a batch; the first one stays. Returns the batch as it then is.

        Raises Paused or Restarted if a person paused, restarted or rolled back the pipeline since ``under`` was read.
        """
        return self._recorded(
            number,
            lambda b: bool(b.changeset),
            lambda b: replace(b, state=BatchState.MERGED, changeset=changeset),
            under,
        )

    def staged(self, number: int, stage: int, path: str, *, under: PauseState | None = None) -> Batch:
        """Record what stage ``stage`` (from 0) of a batch's rules left; the first one stays. As :meth:`merged`."""
        return self._recorded(
            number,
            lambda b: bool(b.changeset) or len(b.stages) != stage,
            lambda b: replace(b, stages=(*b.stages, path), reread=False),
            under,
        )

    def _recorded(
        self, number: int, is_done: Callable[[Batch], bool], change: Callable[[Batch], Batch], under: PauseState | None
    ) -> Batch:
        while True:
            batch = self.require(number)
            if is_done(batch):
                return batch
            rewritten = self.rewrite(
                number,
                lambda b: b if is_done(b) else change(b),
                [self._pause_switch.unchanged(under)] if under else [],
            )
            if rewritten:
                return rewritten
            if under:
                self._pause_switch.require(since=under)
                under = self._pause_switch.read()  # a person resumed meanwhile, and no more than that

    def stage_failed(self, number: int) -> None:
        """Record that a rule failed: the next attempt takes the rule files as they are then."""
        self.rewrite(number, lambda batch: replace(batch, reread=True))

    def unmerge(self, number: int, *, made: Batch | None = None) -> None:
        """Forget a batch's changeset and stages, so that the next merge makes new ones; only if they still are those of
        ``made``.
        """

        def forgotten(batch: Batch) -> Batch:
            if made is not None and (batch.changeset, batch.stages) != (made.changeset, made.stages):
                return batch
            return replace(batch, state=BatchState.DRAINED, changeset=None, stages=(), reread=False)

        self.rewrite(number, forgotten)

    def rewrite(self, number: int, change: Callable[[Batch], Batch], requirements: Sequence[Step] = ()) -> Batch | None:
        """Change a batch in one transaction with ``requirements``.

        None: one of them failed, or the batch changed meanwhile or is gone.
        """
        stored = self._read(number)
        if stored is None:
            return None
        batch = change(stored[0])
        return batch if committed(self._z, *requirements, self._written(batch, stored[1])) else None

    # -- which are remembered ------------------------------------------------------------------------------------------

    def remember(self, batches: Sequence[Batch]) -> None:
        """Record batches again whose nodes were removed."""
        for batch in batches:
            if self.get(batch.number) is None:
                committed(self._z, Create(self._at.batch(batch.number), BATCH.encode(batch.to_json())))

    def forget(self, limit: int) -> list[int]:
        """Drop the nodes of the batches up to ``limit``. Returns their numbers."""
        forgotten = [n for n in self.numbers() if n <= limit]
        claims = (
            [name for name in self._z.children(self._at.claims) if self._at.claimed_batch(name) <= limit]
            if forgotten
            else []
        )
        for start in range(0, len(forgotten), _REMOVED_AT_ONCE):
            if not committed(
                self._z, *(Remove(self._at.batch(n)) for n in forgotten[start : start + _REMOVED_AT_ONCE])
            ):
                break
        for name in claims:
            committed(self._z, Remove(f"{self._at.claims}/{name}"))
        return forgotten

    def forget_all(self) -> None:
        """Drop every node of a batch and of a claim."""
        for folder in (self._at.batches, self._at.claims):
            for name in self._z.children(folder):
                committed(self._z, Remove(f"{folder}/{name}"))
