"""Slots of recurrent state: which are free, which a sequence writes, and which hold a known prefix.

A recurrent layer keeps one state for a whole sequence where attention keeps something per token. A
prefix can therefore be taken up again only at a position whose state was kept: a snapshot, a slot
that nobody writes any more, known by the hash of the block that ends there. A snapshot is made by
writing the next step's state into another slot. Snapshots to which nobody refers are free and are
overwritten least recently used first. A model without recurrent layers has no slots, and every
answer here is then the one that costs nothing. Imports neither jax nor the server.

Invariant: every slot is either free (0 references, in `_free`) or referred to; a slot that is read
by a step is not written by another row of that step.
"""

from collections import OrderedDict
from collections.abc import Sequence


class StatePool:
    """Hands out slots 0 .. num_slots - 1. A pool with any slot at all has at least two: one for a
    sequence, one for the snapshot that it starts from.
    """

    def __init__(self, num_slots: int, *, is_prefix_cached: bool) -> None:
        if num_slots == 1:
            raise ValueError("a pool of recurrent state needs at least 2 slots, got num_slots=1")
        self.num_slots = num_slots
        self.is_prefix_cached = is_prefix_cached
        self._references = [0] * num_slots
        self._hash: list[bytes | None] = [None] * num_slots
        self._by_hash: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict((slot, None) for slot in range(num_slots))
        self._read: list[int] = []  # snapshots that the step being planned reads

    @property
    def num_free(self) -> int:
        """Slots that nobody refers to, snapshots included."""
        return len(self._free)

    @property
    def num_snapshots(self) -> int:
        return len(self._by_hash)

    @property
    def makes_snapshots(self) -> bool:
        return self.num_slots > 0 and self.is_prefix_cached

    def match(self, hashes: Sequence[bytes]) -> int:
        """How many blocks of a prefix, known by the hash chain of its blocks, can be taken up: up
        to its last snapshot; all of them where no state is needed.
        """
        if not self.num_slots:
            return len(hashes)
        known = (count for count in range(len(hashes), 0, -1) if hashes[count - 1] in self._by_hash)
        return next(known, 0)

    def can_start(self, digest: bytes | None) -> bool:
        """Whether a sequence can start from the snapshot of this hash, None = from nothing."""
        if not self.num_slots:
            return True
        is_taken = digest is not None and self._references[self._by_hash[digest]] == 0
        return self.num_free > is_taken

    def start(self, digest: bytes | None) -> tuple[int | None, int | None]:
        """(slot to read, slot to write) of a sequence that starts from a snapshot, or from nothing:
        read None. The caller asks can_start first.
        """
        if not self.num_slots:
            return None, None
        source = None
        if digest is not None:
            source = self._by_hash[digest]
            if self._references[source] == 0:
                del self._free[source]
            self._references[source] += 1
            self._read.append(source)
        return source, self._allocate()

    def fork(self, slot: int, digest: bytes) -> int:
        """The slot that a sequence writes from now on, so that `slot`, which it reads once more,
        stays as the snapshot of this hash; `slot` itself when that is known already or none is
        free.
        """
        if digest in self._by_hash:
            self._touch(self._by_hash[digest])
            return slot
        if not self._free:
            return slot
        self._keep(slot, digest)
        self._read.append(slot)
        return self._allocate()

    def leave(self, slot: int, digest: bytes | None) -> None:
        """A sequence gives its slot back; what is in it stays as a snapshot if it has a hash."""
        if digest is not None and self.is_prefix_cached and digest not in self._by_hash:
            self._keep(slot, digest)
        self._release(slot)

    def settle(self) -> None:
        """The step that was being planned is complete: what it reads may be written by later
        ones.
        """
        for slot in self._read:
            self._release(slot)
        self._read = []

    def forget_all(self) -> None:
        """No slot holds what it held."""
        self._by_hash.clear()
        self._hash = [None] * self.num_slots

    def _allocate(self) -> int:
        slot = self._free.popitem(last=False)[0]
        digest = self._hash[slot]
        if digest is not None:
            del self._by_hash[digest]
            self._hash[slot] = None
        self._references[slot] = 1
        return slot

    def _keep(self, slot: int, digest: bytes) -> None:
        self._hash[slot] = digest
        self._by_hash[digest] = slot

    def _touch(self, slot: int) -> None:
        if slot in self._free:
            self._free.move_to_end(slot)

    def _release(self, slot: int) -> None:
        assert self._references[slot] > 0, f"state slot {slot} released without a reference"
        self._references[slot] -= 1
        if self._references[slot] == 0:
            self._free[slot] = None
            if self._hash[slot] is None:  # nothing to find in it: reuse it before a snapshot
                self._free.move_to_end(slot, last=False)

    def check(self) -> None:
        """AssertionError when an invariant is broken; for tests."""
        for slot, references in enumerate(self._references):
            assert references >= 0
            assert (references == 0) == (slot in self._free), f"slot {slot}: {references}"
        for digest, slot in self._by_hash.items():
            assert self._hash[slot] == digest
        assert sum(digest is not None for digest in self._hash) == len(self._by_hash)
