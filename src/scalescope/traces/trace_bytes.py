"""The bytes of a trace file, plain or gzip: all of them a piece at a time, or the pieces that hold some moments."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from isal import isal_zlib

from scalescope.errors import UsageError
from scalescope.text import plain

CHUNK = 1 << 20  # Bytes that are looked at together
_GZIP = b"\x1f\x8b"
_COMPRESSED_PIECE = 1 << 17


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
        try:
            with open(self.path, "rb", buffering=0) as file:
                first = file.read(_COMPRESSED_PIECE)
                if first.startswith(_GZIP):
                    yield from self._unpacked(first, lambda: file.read(_COMPRESSED_PIECE))
                    return
                while first:
                    yield first
                    first = file.read(CHUNK)
        except OSError as problem:
            raise UsageError(f"cannot read '{plain(self.path.name)}': {problem.strerror}: check the path") from None

    def parts(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Some pieces, ascending; a packed file is unpacked again as far as the last of them."""
        with open(self.path, "rb", buffering=0) as file:
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

    def _unpacked(self, packed: bytes, more: Callable[[], bytes]) -> Iterator[bytes]:
        """Members one after the other; what follows the last one is not looked at."""
        while packed.startswith(_GZIP):
            member = isal_zlib.decompressobj(wbits=31)
            while not member.eof:
                try:
                    data = member.decompress(packed, CHUNK)
                except isal_zlib.error:  # type: ignore[misc]
                    self.problem = "the gzip data is damaged from some point on"
                    return
                if data:
                    yield data
                packed = member.unconsumed_tail
                if not packed and not member.eof and len(data) < CHUNK:
                    packed = more()
                    if not packed:
                        self.problem = "the gzip data ends early"
                        return
            packed = member.unused_data
            if len(packed) < len(_GZIP):
                packed += more()


class Places:
    """Index of the pieces of a file by time, so that one step can be read again without the rest."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._first_s: list[float] = []
        self._last_s: list[float] = []

    def add(self, piece: Piece, first_s: float, last_s: float) -> None:
        """A piece whose events begin and end between these moments."""
        self._pieces.append(piece)
        self._first_s.append(first_s)
        self._last_s.append(last_s)

    def holding(self, start_s: float, end_s: float, around: int = 0) -> list[Piece]:
        """Pieces with events of that time, and some before and after each of them."""
        bounds = enumerate(zip(self._first_s, self._last_s, strict=True))
        found = [at for at, (first_s, last_s) in bounds if first_s <= end_s and last_s >= start_s]
        wide = {near for at in found for near in range(at - around, at + around + 1)}
        return [self._pieces[at] for at in sorted(wide) if 0 <= at < len(self._pieces)]
