"""The log in memory: entries behind a snapshot, and how many of them are durable."""

from collections.abc import Sequence

from sequencer.raft.consensus import Entry
from sequencer.raft.entries import ENTRIES_MAX


class Log:
    """Entries with consecutive indexes after a base whose term is known.

    Attributes:
        base: the index before the first entry held.
        base_term: the term of that index.
        last: the index of the last entry.
        durable: the last entry that is on stable storage here.
    """

    __slots__ = ("_entries", "base", "base_term", "durable", "last")

    def __init__(self, base: int, base_term: int, entries: Sequence[Entry] = ()) -> None:
        self.base = base
        self.base_term = base_term
        self._entries = list(entries)
        self.last = self.durable = base + len(entries)

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None if the log does not hold it."""
        offset = index - self.base - 1
        if 0 <= offset < len(self._entries):
            return self._entries[offset].term
        return self.base_term if index == self.base else None

    def append(self, entry: Entry) -> None:
        """Put an entry at the end."""
        self._entries.append(entry)
        self.last += 1

    def cut(self, index: int) -> None:
        """Forget the entries from `index` on; what was durable of them is not any more."""
        del self._entries[index - self.base - 1 :]
        self.last = self.base + len(self._entries)
        self.durable = min(self.durable, index - 1)

    def between(self, start: int, end: int) -> tuple[Entry, ...]:
        """The entries from `start` to `end`, both included."""
        return tuple(self._entries[max(0, start - self.base - 1) : end - self.base])

    def batch(self, start: int, bytes_max: int) -> tuple[Entry, ...]:
        """The entries from `start` on, as many as fit a message, and one even if it does not."""
        entries = self._entries[start - self.base - 1 : start - self.base - 1 + ENTRIES_MAX]
        if len(entries) == 1:
            return tuple(entries)
        taken = 0
        for count, entry in enumerate(entries):
            taken += len(entry.command)
            if taken > bytes_max:
                return tuple(entries[: max(1, count)])
        return tuple(entries)

    def unsaved(self) -> tuple[Entry, ...]:
        """The entries that are not durable yet."""
        if self.durable == self.last:
            return ()
        return self.between(self.durable + 1, self.last)

    def saved(self, entry: Entry) -> None:
        """Everything up to this entry is durable, if it is still this entry."""
        if self.term_at(entry.index) == entry.term:
            self.durable = max(self.durable, entry.index)

    def agree_by(self, index: int, term: int) -> tuple[int, int]:
        """Where a log that has `term` at `index` may agree with this one: no later than here.

        Skips a whole conflicting term in one exchange instead of an entry.
        """
        index = min(index, self.last)
        while index > self.base and (self.term_at(index) or 0) > term:
            index -= 1
        return index, self.term_at(index) or 0

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`."""
        term = self.term_at(index)
        if term is None or index <= self.base:
            return
        del self._entries[: index - self.base]
        self.base, self.base_term = index, term

    def reset(self, index: int, term: int) -> None:
        """Replace everything by a snapshot that is not durable yet."""
        self._entries.clear()
        self.base, self.base_term, self.durable, self.last = index, term, 0, index
