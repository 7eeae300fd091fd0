"""Cache blocks: which are free, who refers to them, and which hold a known prefix.

A block is referred to by any number of sequences. At zero references it becomes free, but keeps its
content: as long as it is not handed out again, a sequence with the same prefix can take it back
(block-granular prefix cache, least recently freed is reused first). A block's hash covers its
tokens and everything before them, so equal hashes mean equal content. Imports neither jax nor the
server.

Invariant: every block is either free (0 references, in `_free`) or referred to; `_by_hash` maps to
blocks with that content.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

ROOT_HASH = b""


def root_hash(cache_salt: str, *, is_long: bool = False) -> bytes:
    """What stands for the predecessor of a first block: another one for every salt, and for
    sequences whose keys are those of long ones.
    """
    if not cache_salt and not is_long:
        return ROOT_HASH
    salt = cache_salt.encode("utf-8", "surrogatepass")
    person = b"long, salted" if is_long else b"cache salt"
    return hashlib.blake2b(salt, digest_size=16, person=person).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full block whose predecessor has hash `parent`. Cryptographic: a client can't aim
    at another's blocks.
    """
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16, key=parent).digest()


class BlockManager:
    """Hands out blocks 0 .. num_blocks - 1 of `block_size` slots each."""

    def __init__(self, num_blocks: int, block_size: int, *, is_prefix_cached: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.is_prefix_cached = is_prefix_cached
        self._references = [0] * num_blocks
        self._hash: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict(
            (block_id, None) for block_id in range(num_blocks)
        )

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to, cached ones included."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks whose content can be found by its hash."""
        return len(self._by_hash)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each and no known content. The caller checks num_free
        first.
        """
        assert count <= self.num_free, f"{count} blocks asked, {self.num_free} free"
        block_ids = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block_id in block_ids:
            self._forget(block_id)
            self._references[block_id] = 1
        return block_ids

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Blocks that hold the longest known prefix of a hash chain. Takes no reference."""
        if not self.is_prefix_cached:
            return []
        block_ids = []
        for digest in hashes:
            block_id = self._by_hash.get(digest)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def num_unreferenced(self, block_ids: Sequence[int]) -> int:
        """How many of these blocks `acquire` would take out of the free ones."""
        return sum(self._references[block_id] == 0 for block_id in block_ids)

    def acquire(self, block_ids: Sequence[int]) -> None:
        """One more reference to each of these blocks, which keep their content."""
        for block_id in block_ids:
            if self._references[block_id] == 0:
                del self._free[block_id]
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One reference less to each block of a sequence, in order. The end of a sequence is reused
        before its beginning.
        """
        for block_id in reversed(block_ids):
            assert self._references[block_id] > 0, f"block {block_id} released without a reference"
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                self._free[block_id] = None
                if (
                    self._hash[block_id] is None
                ):  # nothing to find in it: reuse it before cached content
                    self._free.move_to_end(block_id, last=False)

    def register(self, block_id: int, digest: bytes) -> None:
        """The block is full and its content has this hash. Of two equal blocks the first stays
        known.
        """
        if self.is_prefix_cached and self._hash[block_id] is None and digest not in self._by_hash:
            self._hash[block_id] = digest
            self._by_hash[digest] = block_id

    def forget_all(self) -> None:
        """No block holds what it held."""
        for block_id in range(self.num_blocks):
            self._forget(block_id)

    def _forget(self, block_id: int) -> None:
        digest = self._hash[block_id]
        if digest is not None:
            del self._by_hash[digest]
            self._hash[block_id] = None

    def check(self) -> None:
        """AssertionError when an invariant is broken; for tests."""
        for block_id, references in enumerate(self._references):
            assert references >= 0
            assert (references == 0) == (block_id in self._free), (
                f"block {block_id}: {references} references"
            )
        for digest, block_id in self._by_hash.items():
            assert self._hash[block_id] == digest
        assert sum(digest is not None for digest in self._hash) == len(self._by_hash)
