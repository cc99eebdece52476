"""The bytes of a trace file, plain or gzip, a piece at a time."""

from collections.abc import Callable, Iterator
from pathlib import Path

from isal import isal_zlib

from scalescope.errors import UsageError
from scalescope.text import plain

CHUNK = 1 << 20  # Bytes that are looked at together
_GZIP = b"\x1f\x8b"
_COMPRESSED_PIECE = 1 << 17


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
