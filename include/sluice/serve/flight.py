"""The Arrow Flight server of the service.

=================  ==================================================================================================================
``ListFlights``    a flight per table that may be read: path ``[pipeline, schema.table]``, its Arrow schema, a ticket
``GetFlightInfo``  of such a path, or of a command: the JSON of a ticket (:class:`sluice.serve.requests.ReadRequest`)
``GetSchema``      the same, the schema alone
``DoGet``          the rows of a ticket; after each stored batch an empty record batch whose metadata is a JSON mark
``DoExchange``     the same for a named subscription, with acknowledgements (:mod:`sluice.serve.exchange`)
=================  ==================================================================================================================

An error has its text, and as ``extra_info`` JSON: ``error`` (the class), ``retryable``, and what a program may act on
(``oldest``, ``batch``).
"""  # noqa: E501

from __future__ import annotations

import json
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import structlog
from pyarrow import flight

from sluice.config.pipeline import IDENTIFIER
from sluice.errors import AccessDenied, ConfigError, SluiceError
from sluice.model.tables import TableId
from sluice.serve.access import ANYBODY, Reader, Readers
from sluice.serve.ahead import ahead
from sluice.serve.exchange import Exchange
from sluice.serve.read import Reading, Sent
from sluice.serve.requests import ReadRequest, SubscribeRequest, for_programs, parsed
from sluice.serve.service import Service, Slot

_log = structlog.get_logger()
_READER = "reader"


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves until it is ended.

    Args:
        location: ``grpc://host:port``, or with ``tls`` ``grpc+tls://``; port 0: one that is free.
        readers: who may read; None: whoever can connect may read everything.
        tls: certificate (with its chain) and private key, PEM.
    """

    def __init__(
        self, service: Service, location: str, *, readers: Readers | None = None, tls: tuple[bytes, bytes] | None = None
    ) -> None:
        asking = {_READER: _Asking(readers)} if readers is not None else None
        super().__init__(location, middleware=asking, tls_certificates=[tls] if tls is not None else None)
        self._service = service
        self._asks = readers is not None
        self._ending = threading.Event()

    def _reader(self, context: flight.ServerCallContext) -> Reader:
        if not self._asks:
            return ANYBODY
        reader: Reader = context.get_middleware(_READER).reader
        return reader

    def stop(self, patience_s: float = 10.0) -> bool:
        """Take no further requests, and wait for the open ones.

        False: the client of one takes nothing; only the process's end ends it.
        """
        self._ending.set()
        ending = threading.Thread(target=self.shutdown, name="flight-end", daemon=True)
        ending.start()
        ending.join(patience_s)
        return not ending.is_alive()

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Yield the flights of a pipeline, or of all. A pipeline whose files are wrong is left out, and logged.

        ``criteria``: the name of a pipeline; empty: all.
        """
        with as_flight_errors():
            reader = self._reader(context)
            pipeline = criteria.decode("utf-8", "replace") if criteria else ""
            names = self._service.pipelines(reader)
            if pipeline and pipeline not in names:
                raise ConfigError(
                    f"there is no pipeline {pipeline!r} to read", hint=f"known: {', '.join(names) or 'none'}"
                )
            flights = []
            for name in [pipeline] if pipeline else names:
                try:
                    tables = self._service.tables(name, reader)
                except ConfigError as error:
                    if pipeline:
                        raise
                    _log.warning("pipeline_skipped", pipeline=name, error=str(error))
                    continue
                for table, shape in tables.items():
                    flights.append(
                        _info(flight.FlightDescriptor.for_path(name, str(table)), shape.request, shape.schema)
                    )
        return iter(flights)

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """See the module."""
        with as_flight_errors():
            request = _asked(descriptor)
            return _info(descriptor, request, self._service.open(request, self._reader(context)).shape.schema)

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """See the module."""
        with as_flight_errors():
            return flight.SchemaResult(self._service.open(_asked(descriptor), self._reader(context)).shape.schema)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Return the rows of a ticket.

        A few pieces are made ahead of the client: a slow client makes the server wait, and costs only the memory of
        these.
        """
        with as_flight_errors():
            reader = self._reader(context)
            give_back = self._service.slots.take(reader.name)
            try:
                reading = self._service.open(parsed(ticket.ticket), reader)
                pieces = _sent(reading, lambda: self._ending.is_set() or context.is_cancelled(), give_back)
            except BaseException:
                give_back()
                raise
            weakref.finalize(pieces, give_back)  # also where it is never asked for a first piece
            return flight.GeneratorStream(reading.shape.schema, pieces)

    def do_exchange(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor, reader: Any, writer: Any
    ) -> None:
        """See the module."""
        with as_flight_errors():
            if descriptor.descriptor_type != flight.DescriptorType.CMD:
                raise ConfigError(
                    "a subscription is asked for with a command: the JSON of a ticket with `subscription`"
                )
            who = self._reader(context)
            slot = Slot(self._service.slots, self._service.resting, who.name)
            try:
                session = self._service.subscribe(parsed(descriptor.command, SubscribeRequest), who)
                is_over = lambda: self._ending.is_set() or context.is_cancelled()  # noqa: E731
                Exchange(session, reader, writer, is_over, _error_message, slot.rest).run()
            except (pa.ArrowException, OSError):
                if not context.is_cancelled():
                    raise
            finally:
                slot.give_back()


def _sent(reading: Reading, is_over: Callable[[], bool], give_back: Callable[[], None]) -> Iterator[Sent]:
    hung_up = threading.Event()
    pieces = ahead(reading.sent(lambda: hung_up.is_set() or is_over(), hung_up.is_set))
    try:
        with as_flight_errors():
            for piece in pieces:
                yield piece
                del piece
    finally:
        hung_up.set()
        pieces.close()
        give_back()


class _Asking(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Looks at the token of each call, before anything of it is done."""

    def __init__(self, readers: Readers) -> None:
        super().__init__()
        self._readers = readers

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> _Known:
        authorization = next((values for name, values in headers.items() if name.lower() == "authorization"), [])
        with as_flight_errors():
            return _Known(self._readers.known(str(authorization[0]) if authorization else None))


class _Known(flight.ServerMiddleware):  # type: ignore[misc]
    """The reader who calls."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader


def _asked(descriptor: flight.FlightDescriptor) -> ReadRequest:
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return parsed(descriptor.command)
    path = [part.decode("utf-8", "replace") for part in descriptor.path]
    schema, dot, table = path[-1].partition(".") if path else ("", "", "")
    if len(path) != 2 or not dot:
        raise ConfigError(
            "a path has two parts: the pipeline and schema.table", hint="or send a ticket's JSON as command"
        )
    if not re.fullmatch(IDENTIFIER, path[0]):
        raise ConfigError(f"{path[0]!r} is not the name of a pipeline")
    return ReadRequest.of_table(path[0], TableId(schema, table))


def _info(descriptor: flight.FlightDescriptor, request: ReadRequest, schema: pa.Schema) -> flight.FlightInfo:
    ticket = request.model_dump_json(by_alias=True, exclude_defaults=True)
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)


@contextmanager
def as_flight_errors() -> Iterator[None]:
    """Turn an error inside into one of Flight.

    Of an error that is not Sluice's own the client only learns that there was one.
    """
    try:
        yield
    except SluiceError as error:
        raise _flight_error(error) from None
    except flight.FlightError:
        raise
    except Exception:
        _log.exception("read_failed")
        raise flight.FlightInternalError("the service failed; its log says why") from None


def _error_message(error: Exception) -> dict[str, Any]:
    """Describe an error that ends a subscription's session, for its client; the call itself ends as
    :func:`as_flight_errors` says.
    """
    if isinstance(error, SluiceError):
        return {"error": type(error).__name__, **for_programs(error)}
    return {"error": "internal", "retryable": False}


def _flight_error(error: SluiceError) -> flight.FlightError:
    extra = json.dumps(_error_message(error)).encode()
    kind = flight.FlightServerError
    if isinstance(error, AccessDenied):
        kind = flight.FlightUnauthorizedError if error.known else flight.FlightUnauthenticatedError
    elif error.retryable:
        kind = flight.FlightUnavailableError
    return kind(str(error), extra)
