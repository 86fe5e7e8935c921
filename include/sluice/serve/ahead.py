"""Making the next pieces of a stream while the last one is on its way to the client."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from queue import SimpleQueue
from typing import TypeVar

_Made = TypeVar("_Made")

PIECES = 2
"""Record batches of some megabytes each."""


def ahead(source: Generator[_Made, None, None], pieces: int = PIECES) -> Generator[_Made, None, None]:
    """Yield what ``source`` yields, in order, made by a thread of its own, up to ``pieces`` ahead of the caller.

    The thread starts when the first piece is asked for, and one more piece may be in the making. Closed early, it waits
    for that piece, and closes ``source``. Raises what ``source`` raises, in its place.
    """
    queue: SimpleQueue[_Made | _Ended] = SimpleQueue()
    room = threading.Semaphore(pieces)
    over = threading.Event()
    thread = threading.Thread(target=_make, args=(source, queue, room, over), name="ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(piece := queue.get(), _Ended):
            room.release()
            yield piece
            del piece
        if piece.error is not None:
            raise piece.error
    finally:
        over.set()
        room.release()
        thread.join()


class _Ended:
    """Nothing more comes; ``error``: because of it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def _make(
    source: Generator[_Made, None, None],
    queue: SimpleQueue[_Made | _Ended],
    room: threading.Semaphore,
    over: threading.Event,
) -> None:
    try:
        with closing(source):
            for piece in _while_room(source, room, over):
                queue.put(piece)
                del piece  # it is the client's
    except BaseException as error:  # whatever it is, it is raised where the pieces are taken
        queue.put(_Ended(error))
    else:
        queue.put(_Ended())


def _while_room(source: Iterator[_Made], room: threading.Semaphore, over: threading.Event) -> Iterator[_Made]:
    """Yield each piece when there is room for it."""
    while True:
        room.acquire()
        if over.is_set():
            return
        try:
            piece = next(source)
        except StopIteration:
            return
        yield piece
        del piece
