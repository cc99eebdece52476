"""A trace file, plain or gzip: its bytes piece by piece, its events chunk by chunk, as far as it can be read."""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from isal import isal_zlib

from scalescope.errors import UsageError
from scalescope.records.explanation import Loss
from scalescope.text import plain

Event = TypeVar("Event", bound=msgspec.Struct)
Batch = TypeVar("Batch")

# What decoding raises for bytes that are no events of the wanted kind.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
CHUNK = 1 << 20  # Bytes that are looked at together
_GZIP = b"\x1f\x8b"
_BAD_GZIP = "the gzip data is cut or damaged from some point on"
_COMPRESSED_PIECE = 1 << 17
_UNPACKED = 1 << 15  # Bytes that are unpacked together: at most these before a damage are lost
LONGEST_EVENT = 16 << 20  # Bytes without the end of an event after which reading stops
LONGEST_NESTED = 1 << 20  # Bytes after which an event that cannot be decoded is damaged, and not only torn by a chunk
_HEAD = 1 << 16
# glibc returns freed memory to the system above a limit that grows with the largest block that was ever freed. Below it
# the arrays of every chunk would be page-faulted anew, which takes a fifth of the time of reading.
_LARGEST_FREED = 31 << 20
_FOOTER = 1 << 20
_DAMAGED = "some events are damaged"
_CUT = "the list of events is not closed: the file was cut or is still being written"
_TOO_LONG = f"{LONGEST_EVENT >> 20} MiB without the end of an event: what follows them was not read"
_JSON = json.JSONDecoder(strict=False)
_BORDER = re.compile(rb"\}\s*,\s*\{")
_ANY_BORDER = re.compile(rb"\}[\s,\[\]]*\{")
BEFORE = b"\xef\xbb\xbf \t\r\n"  # What may stand before the first bracket
_SEPARATORS = b" \t\r\n,[]"
_TRACE_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_OBJECT_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"', b'"deviceProperties"')
_ARRAY_END = re.compile(rb"\s*\]\s*[,}]")


class Piece(NamedTuple):
    """A stretch of the unpacked file, in bytes."""

    offset: int
    size: int


class TraceBytes:
    """Iterates over pieces of at most `CHUNK` bytes, unpacked; `problem` says afterwards why it ended too early."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""

    def __iter__(self) -> Iterator[bytes]:
        """The whole file, in order."""
        with self._opened() as file:
            first = file.read(_COMPRESSED_PIECE)
            if first.startswith(_GZIP):
                yield from self._unpacked(first, lambda: file.read(_COMPRESSED_PIECE))
                return
            while first:
                yield first
                first = file.read(CHUNK)

    def parts(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Read some pieces, ascending; a packed file is unpacked again as far as the last of them."""
        with self._opened() as file:
            if not file.read(len(_GZIP)).startswith(_GZIP):
                for piece in pieces:
                    file.seek(piece.offset)
                    yield file.read(piece.size)
                return
        data, begin, unpacked = b"", 0, iter(self)
        for piece in pieces:
            while begin + len(data) < piece.offset + piece.size and (more := next(unpacked, b"")):
                if begin + len(data) <= piece.offset:
                    begin, data = begin + len(data), b""
                data += more
            yield data[piece.offset - begin : piece.offset - begin + piece.size]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[io.FileIO]:
        try:
            with open(self.path, "rb", buffering=0) as file:
                yield file
        except OSError as problem:
            raise UsageError(f"cannot read '{plain(self.path.name)}': {problem.strerror}: check the path") from None

    def _unpacked(self, packed: bytes, more: Callable[[], bytes]) -> Iterator[bytes]:
        """Members one after the other; what follows the last one is not looked at."""
        while packed.startswith(_GZIP):
            member = isal_zlib.decompressobj(wbits=31)
            while not member.eof:
                try:
                    data = member.decompress(packed, _UNPACKED)
                except isal_zlib.error:  # type: ignore[misc]
                    self.problem = _BAD_GZIP
                    return
                if data:
                    yield data
                packed = member.unconsumed_tail
                if not packed and not member.eof and len(data) < _UNPACKED:
                    packed = more()
                    if not packed:
                        self.problem = _BAD_GZIP
                        return
            packed = member.unused_data
            if len(packed) < len(_GZIP):
                packed += more()


class EventStream(Generic[Event, Batch]):
    """Iterates over batches of events, decoded as `event_type`, a Struct with `gc=False` and few fields.

    A subclass says what a batch is. What cannot be read is left out and counted in `loss`, which is complete after the
    last batch. The times of batches that are noted find them again in the file.
    """

    def __init__(self, path: Path, event_type: type[Event]) -> None:
        self.path = path
        self.header = b""  # What stands before the first event
        self.footer = b""  # What follows the list of events, at most 1 MiB; complete after the last batch
        self.bytes_read = 0  # Of the unpacked file
        self._in_object = False
        self._event_type = event_type
        self._one = msgspec.json.Decoder(event_type)
        self._many: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[event_type])  # type: ignore[valid-type]
        self._piece = Piece(0, 0)  # That of the latest batch
        self._places: list[tuple[Piece, float, float]] = []  # With the times between which its events lie
        self._lost_events = 0
        self._lost_bytes = 0
        self._reasons = dict[str, None]()  # In the order in which they were found

    def batch_of_piece(self, piece: bytes) -> Batch:
        """Convert events with commas between them; may raise what `decoded` raises."""
        raise NotImplementedError

    def batch_of_events(self, events: list[Event]) -> Batch:
        """Convert the events that were kept of a damaged piece."""
        raise NotImplementedError

    def decoded(self, piece: bytes) -> list[Event]:
        """Events with commas between them."""
        return self._many.decode(b"".join((b"[", piece, b"]")))

    @property
    def loss(self) -> Loss:
        """Events and bytes that could not be read so far."""
        return Loss(events=self._lost_events, bytes=self._lost_bytes, reason="; ".join(self._reasons))

    def __iter__(self) -> Iterator[Batch]:
        """Every complete event in the order of the file."""
        bytes(_LARGEST_FREED)
        source = TraceBytes(self.path)
        pieces = iter(source)
        data = self._events_begin(pieces)
        position = len(self.header)
        ended = stopped = too_long = False
        while not stopped and (more := self._more(pieces, max(CHUNK, min(len(data), LONGEST_EVENT - len(data))))):
            data += more
            if ended:
                stopped = len(data) > _FOOTER
                continue
            batch, events, used = None, list[Event](), 0
            end, begin = last_border(data)
            if end:
                try:
                    batch, used = self.batch_of_piece(data[:end]), begin
                except UNREADABLE:
                    events, used, ended = self._careful(data, final=False)
            self._piece = Piece(position, used)
            position += len(data)
            data = data[used:].lstrip(b", \t\r\n")
            position -= len(data)
            if batch is not None:
                yield batch
            if events:
                yield self.batch_of_events(events)
            if not ended and len(data) >= LONGEST_EVENT:
                stopped = too_long = True
        if not ended:
            events, used, ended = self._careful(data, final=True)
            self._piece = Piece(position, used)
            if events:
                yield self.batch_of_events(events)
            if not ended and not self._reasons and not data.rstrip().endswith(b"]"):
                self.lose(0, 0, _CUT)
            data = data[used:]
        if too_long:
            self._reasons.pop(_CUT, None)  # nobody knows
            self.lose(0, 0, _TOO_LONG)
        self.footer = data[:_FOOTER]
        if source.problem:  # it explains the rest
            self._reasons = {source.problem: None}

    def note_times(self, first: float, last: float) -> None:
        """Note that the events of the latest batch begin and end between these moments."""
        self._places.append((self._piece, first, last))

    def again(self, start: float, end: float, around: int = 0) -> Iterator[Batch]:
        """Read batches with events of that time once more, and some before and after each; nothing is lost twice."""
        found = [at for at, (_, first, last) in enumerate(self._places) if first <= end and last >= start]
        wide = {near for at in found for near in range(at - around, at + around + 1)}
        pieces = [self._places[at][0] for at in sorted(wide) if 0 <= at < len(self._places)]
        for data in TraceBytes(self.path).parts(pieces):
            try:
                batch = self.batch_of_piece(data.rstrip(b", \t\r\n"))
            except UNREADABLE:
                lost = self._lost_events, self._lost_bytes, dict(self._reasons)
                batch = self.batch_of_events(self._careful(data, final=True)[0])
                self._lost_events, self._lost_bytes, self._reasons = lost
            yield batch

    def _more(self, pieces: Iterator[bytes], wanted: int) -> bytes:
        """Read at least `wanted` bytes; fewer at the end of the file."""
        gathered, size = [], 0
        for piece in pieces:
            gathered.append(piece)
            size += len(piece)
            if size >= wanted:
                break
        self.bytes_read += size
        return b"".join(gathered)

    def _events_begin(self, pieces: Iterator[bytes]) -> bytes:
        """Read up to the first event; the bytes from there on. The list may lie in an object."""
        data = b""
        for piece in pieces:
            self.bytes_read += len(piece)
            data += piece
            if data.lstrip(BEFORE).startswith(b"["):
                begin = data.index(b"[") + 1
                self.header = data[:begin]
                return data[begin:]
            if found := _TRACE_EVENTS.search(data):
                self.header, self._in_object = data[: found.end()], True
                return data[found.end() :]
            if len(data) > (LONGEST_EVENT if is_object(data) else _HEAD):
                break
        if not is_object(data):
            return data
        self.header, self._in_object = data[:_FOOTER], True
        self.lose(0, len(data), "there is no list of events")
        return b""

    def _careful(self, data: bytes, *, final: bool) -> tuple[list[Event], int, bool]:
        """Decode data in which something is wrong, event by event; unless final, a torn end waits for the next chunk.

        Returns:
            Every complete event, the number of bytes that were used, and whether the list of events ends there.
        """
        events, position, text = list[Event](), 0, data.decode("latin-1")  # one letter for each byte
        while not (self._in_object and _ARRAY_END.match(data, position)):
            start = data.find(b"{", position)
            between = data[position : start if start >= 0 else len(data)]
            if strange := len(between.strip(_SEPARATORS)):
                self.lose(0, strange, _DAMAGED)
            if start < 0:
                return events, len(data), False
            try:
                _, position = _JSON.raw_decode(text, start)
            except (ValueError, RecursionError):
                if not final and len(data) - start < LONGEST_NESTED:
                    return events, start, False
                border = _ANY_BORDER.search(data, start)
                position = border.end() - 1 if border else len(data)
                self.lose(1, position - start, _DAMAGED if border else _CUT)
                continue
            try:
                events.append(self._one.decode(data[start:position]))
            except UNREADABLE:
                self.lose(1, position - start, _DAMAGED)
        return events, position, True

    def lose(self, events: int, size: int, reason: str) -> None:
        """Counts events and bytes that could not be read, or that cannot be."""
        self._lost_events += events
        self._lost_bytes += size
        self._reasons[reason] = None


class Events(EventStream[Event, list[Event]]):
    """A stream whose batches are lists of events."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for another process, which makes the decoders anew."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("_one", "_many")}
        return Events, (self.path, self._event_type), state

    def batch_of_piece(self, piece: bytes) -> list[Event]:
        """Decode them."""
        return self.decoded(piece)

    def batch_of_events(self, events: list[Event]) -> list[Event]:
        """Return them as they are."""
        return events


def beginning_of(path: Path) -> bytes:
    """Read the first 64 KiB, unpacked, from the first bracket on."""
    beginning = b""
    for piece in TraceBytes(path):
        beginning += piece
        if len(beginning) >= _HEAD:
            break
    return beginning[:_HEAD].lstrip(BEFORE)


def is_object(text: bytes) -> bool:
    """Check whether the events lie in an object with keys of its own, as PyTorch's profiler writes them."""
    return any(key in text for key in _OBJECT_KEYS)


def last_border(data: bytes) -> tuple[int, int]:
    """Find where the last event but one ends and the last one begins; 0 and 0 for fewer than two."""
    size = 1 << 14
    while True:
        start = max(0, len(data) - size)
        if borders := _BORDER.findall(data, start):
            end = data.rindex(borders[-1])
            return end + 1, end + len(borders[-1]) - 1
        if not start:
            return 0, 0
        size *= 16


def halves(piece: bytes) -> tuple[bytes, bytes] | None:
    """Events with commas between them in two parts; None when there is no border in the second half."""
    border = _BORDER.search(piece, len(piece) // 2)
    return (piece[: border.start() + 1], piece[border.end() - 1 :]) if border else None
