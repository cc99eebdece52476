"""The events of a Horovod timeline, plain or damaged, as columns."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from scalescope.records.explanation import Loss
from scalescope.timelines.event_stream import EventStream, halves
from scalescope.timelines.horovod.columns import Columns, TimelineEvent, Vocabulary, joined_columns
from scalescope.timelines.horovod.scan import Scanner

_SMALL = 1 << 16


class HorovodStream:
    """The columns of a timeline, a chunk at a time; `vocabulary` and `loss` are complete afterwards."""

    def __init__(self, path: Path) -> None:
        self.vocabulary = Vocabulary()
        self._events = EventStream(path, TimelineEvent)
        self._scanner = Scanner(self.vocabulary)

    def __iter__(self) -> Iterator[Columns]:
        """In the order of the file."""
        return self._events.batches(self._sound, self.vocabulary.columns)

    def _sound(self, piece: bytes) -> Columns:
        """By array operations where that is possible, otherwise event by event, in as small parts as needed."""
        columns = self._scanner.columns(piece)
        if columns is not None:
            return columns
        if len(piece) > _SMALL and (parts := halves(piece)):
            return joined_columns(self._sound(parts[0]), self._sound(parts[1]))
        return self.vocabulary.columns(self._events.decoded(piece))

    @property
    def loss(self) -> Loss:
        """What could not be read."""
        loss, strange = self._events.loss, self.vocabulary.strange
        if not strange:
            return loss
        reasons = [loss.reason] if loss.reason else []
        reason = "; ".join([*reasons, "some times are out of range"])
        return msgspec.structs.replace(loss, events=loss.events + strange, reason=reason)
