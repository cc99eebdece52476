"""Reads the usual layout of Horovod's events with array operations over the bytes; the unusual is left to others."""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scalescope.traces.horovod.columns import (
    END,
    KIND_OF_LETTER,
    MARK,
    SLOTS,
    TICK,
    UNKNOWN,
    Columns,
    Numbers,
    Vocabulary,
    size_of,
)

Words = NDArray[np.uint64]
LONGEST_TEXT = 128
MOST_TEXTS = 1 << 16
MOST_DIGITS = 16
_ZEROS = np.uint64(0x3030303030303030)
_SIMPLE_NAME = re.compile(rb"[A-Za-z0-9_.-]+")
_ARGUMENTS = re.compile(rb'\{"dtype": "([a-z0-9]{1,16})", "shape": "([\[\]0-9, ]{0,400})"\}')
_NAME_AT, _END_TIME_AT = len('{"ph": "B", "name": "'), len('{"ph": "E", "ts": ')
_BEFORE_PID, _BEFORE_ARGUMENTS, _AFTER_PID = len(', "pid": '), len(', "args": '), len(', "dur": 0')
_SHORTEST = len('{"ph": "E", "ts": 1, "pid": 1}')


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


_EVENT, _NAME, _QUOTED, _TIME = _word(b'{"ph": "'), _word(b'", "name'), _word(b'name": "'), _word(b', "ts": ')
_PID, _DURATION, _SCOPE = _word(b', "pid":'), _word(b', "dur":'), _word(b', "s": "')
_GIVEN, _DTYPE = _word(b', "args"'), _word(b'{"dtype"')
_KIND = np.full(256, -1, dtype=np.int8)
for _letter, _kind in KIND_OF_LETTER.items():
    _KIND[ord(_letter)] = _kind


class Unusual(Exception):
    """Something is written in another way than Horovod 0.19 to 0.28 do."""


def _expect(good: NDArray[np.bool_]) -> None:
    if not good.all():
        raise Unusual


class Scanner:
    """Keeps what is known about names and shapes from one piece to the next."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._names = _Texts(lambda text: vocabulary.number(text.decode()) if _SIMPLE_NAME.fullmatch(text) else None)
        self._sizes = _Texts(_size)

    def columns(self, piece: bytes) -> Columns:
        """The columns of events with commas between them; raises Unusual when one is written in another way."""
        letters = np.frombuffer(piece, dtype=np.uint8)
        braces = np.flatnonzero(letters == ord("{"))
        if not len(braces) or braces[-1] + _SHORTEST > len(piece):
            raise Unusual
        words: Words = np.ndarray((len(piece) - 7,), "<u8", piece, strides=(1,))
        is_event = words[braces] == _EVENT
        starts, inner = braces[is_event], braces[~is_event]
        if not is_event[0]:
            raise Unusual
        kind = _KIND[letters[starts + 8]]
        _expect(kind >= 0)
        closing = _closing(piece, letters, starts)
        pid_end = closing.copy()
        owners = np.searchsorted(starts, inner) - 1
        _expect((words[inner] == _DTYPE) & (kind[owners] == END) & (words[inner - _BEFORE_ARGUMENTS] == _GIVEN))
        _expect(np.diff(owners) > 0)
        pid_end[owners] = inner - _BEFORE_ARGUMENTS
        ticks, marks = np.flatnonzero(kind == TICK), np.flatnonzero(kind == MARK)
        pid_end[ticks] -= _AFTER_PID
        _expect((words[pid_end[ticks]] == _DURATION) & (letters[closing[ticks] - 1] == ord("0")))
        pid, time_end = _pids(letters, words, pid_end, marks)
        time, digits = _times(piece, words, time_end)
        time_begin = time_end - digits
        _expect((words[time_begin - 8] == _TIME) & (letters[time_begin - 9] == ord('"')))
        is_end = kind == END
        _expect(time_begin[is_end] == starts[is_end] + _END_TIME_AT)
        name = np.full(len(starts), UNKNOWN, dtype=np.int64)
        named = np.flatnonzero(~is_end)
        begins = starts[named]
        _expect((words[begins + 9] == _NAME) & (words[begins + 13] == _QUOTED))
        name[named] = self._names.values(piece, words, begins + _NAME_AT, time_begin[named] - 9)
        size = np.full(len(starts), UNKNOWN, dtype=np.int64)
        size[owners] = self._sizes.values(piece, words, inner, closing[owners])
        return Columns(kind, name, pid % SLOTS, time, size)


class _Texts:
    """Numbers for texts, found by a key made of all their letters."""

    def __init__(self, value: Callable[[bytes], int | None]) -> None:
        self._value = value
        self._keys = np.zeros(0, dtype=np.uint64)
        self._values = np.zeros(0, dtype=np.int64)

    def values(self, piece: bytes, words: Words, begins: Numbers, ends: Numbers) -> Numbers:
        """The numbers of the texts that begin and end so."""
        if not len(begins):
            return begins
        lengths = ends - begins
        longest = int(lengths.max())
        if lengths.min() < 1 or longest > LONGEST_TEXT:
            raise Unusual
        tail = ends - 8
        keys = words[tail] * np.uint64(0xC2B2AE3D27D4EB4F) + lengths.astype(np.uint64)
        for offset in range(0, max(1, longest - 8), 8):
            keys = keys * np.uint64(0x9E3779B97F4A7C15) ^ words[np.minimum(begins + offset, tail)]
        at, known = self._found(keys)
        if not known.all():
            self._learn(piece, keys, begins, ends, known)
            at, _ = self._found(keys)
        return self._values[at]

    def _found(self, keys: Words) -> tuple[Numbers, NDArray[np.bool_]]:
        if not len(self._keys):
            return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=bool)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return at, np.equal(self._keys[at], keys)

    def _learn(self, piece: bytes, keys: Words, begins: Numbers, ends: Numbers, known: NDArray[np.bool_]) -> None:
        unknown = np.flatnonzero(~known)
        new, first = np.unique(keys[unknown], return_index=True)
        where = unknown[first]
        values = [self._value(piece[begin:end]) for begin, end in zip(begins[where], ends[where], strict=True)]
        if None in values or len(self._keys) + len(new) > MOST_TEXTS:
            raise Unusual
        together = np.concatenate([self._keys, new])
        order = np.argsort(together)
        self._keys = together[order]
        self._values = np.concatenate([self._values, np.array(values, dtype=np.int64)])[order]


def _size(text: bytes) -> int | None:
    found = _ARGUMENTS.fullmatch(text)
    return size_of(found[1].decode(), found[2].decode()) if found else None


def _closing(piece: bytes, letters: NDArray[np.uint8], starts: Numbers) -> Numbers:
    """Find where the braces close; one comma, and at most one line break, stands between events."""
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:] - 2
    ends[:-1] -= letters[starts[1:] - 1] == ord("\n")
    ends[-1] = piece.rfind(b"}")
    _expect(letters[ends] == ord("}"))
    _expect(letters[ends[:-1] + 1] == ord(","))
    if (piece[: starts[0]] + piece[ends[-1] + 1 :]).strip():
        raise Unusual
    return ends


def _pids(letters: NDArray[np.uint8], words: Words, pid_end: Numbers, marks: Numbers) -> tuple[Numbers, Numbers]:
    """The tensors, 0 for marks, and where the times end."""
    tails = words[pid_end - 8]
    other = ((tails ^ _ZEROS) + np.uint64(0x7676767676767676) | tails) & np.uint64(0x8080808080808080)
    digits = (other < np.uint64(1 << 56)).astype(np.int64)
    for byte in range(6, 1, -1):
        more = other < np.uint64(1 << (8 * byte))
        if not more.any():
            break
        digits += more
    digits[marks] = 1
    time_end = pid_end - digits - _BEFORE_PID
    good = (digits > 0) & (words[time_end] == _PID) & (letters[time_end + 8] == ord(" "))
    if len(marks):
        tails[marks] = _ZEROS
        time_end[marks] = pid_end[marks] - len(', "s": "g"')
        good[marks] = (words[time_end[marks]] == _SCOPE) & (letters[pid_end[marks] - 1] == ord('"'))
    _expect(good)
    return _number(tails, (64 - 8 * digits).astype(np.uint64)), time_end


def _times(piece: bytes, words: Words, ends: Numbers) -> tuple[Numbers, int]:
    """The times that end there and how many digits they have, all of them as many as the first."""
    before = piece[max(0, ends[0] - MOST_DIGITS) : ends[0]]
    digits = len(before) - len(before.rstrip(b"0123456789"))
    if not 0 < digits < MOST_DIGITS:
        raise Unusual
    time = _number(words[ends - 8], np.uint64(64 - 8 * min(digits, 8)))
    if digits > 8:
        high = words[ends - 16]
        alike = high[:1] if (high == high[0]).all() else high
        time += _number(alike, np.uint64(64 - 8 * (digits - 8))) * 100_000_000
    return time, digits


def _number(words: Words, unused_bits: NDArray[np.uint64] | np.uint64) -> Numbers:
    """The numbers that eight letters write, the first of which are not used."""
    digits = ((words >> unused_bits) << unused_bits) - ((_ZEROS >> unused_bits) << unused_bits)
    if ((digits | (digits + np.uint64(0x0606060606060606))) & np.uint64(0xF0F0F0F0F0F0F0F0)).any():
        raise Unusual
    digits = digits * np.uint64(10) + (digits >> np.uint64(8))
    pairs = np.uint64(0x000000FF000000FF)
    high = (digits & pairs) * np.uint64(0x000F424000000064)
    low = ((digits >> np.uint64(16)) & pairs) * np.uint64(0x0000271000000001)
    return ((high + low) >> np.uint64(32)).astype(np.int64)
