"""The block manager under random use. Oracle: a model that remembers who holds what."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.engine.block_manager import ROOT_HASH, BlockManager, block_hash, root_hash

NUM_BLOCKS, BLOCK_SIZE = 7, 3


class Blocks(RuleBasedStateMachine):
    """Sequences allocate, extend, share and release; `holders` is the model of the references."""

    def __init__(self):
        super().__init__()
        self.blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE, is_prefix_cached=True)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}  # block -> hash it was registered under

    @rule(count=st.integers(0, 4))
    def allocate(self, count):
        if count <= self.blocks.num_free:
            block_ids = self.blocks.allocate(count)
            assert len(set(block_ids)) == count
            assert not set(block_ids) & {block_id for held in self.held for block_id in held}
            for block_id in block_ids:
                self.content.pop(block_id, None)
            self.held.append(block_ids)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.blocks.release(self.held.pop(index))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), token=st.integers(0, 2))
    def register(self, data, token):
        held = data.draw(st.sampled_from(self.held))
        parent = ROOT_HASH
        for block_id in held:
            parent = block_hash(parent, [token] * BLOCK_SIZE)
            known = self.blocks.match([parent])
            self.blocks.register(block_id, parent)
            if not known and block_id not in self.content:
                self.content[block_id] = parent

    @rule(token=st.integers(0, 2), depth=st.integers(1, 4))
    def take_prefix(self, token, depth):
        hashes, parent = [], ROOT_HASH
        for _ in range(depth):
            parent = block_hash(parent, [token] * BLOCK_SIZE)
            hashes.append(parent)
        hit = self.blocks.match(hashes)
        assert [self.content[block_id] for block_id in hit] == hashes[: len(hit)]
        assert self.blocks.num_unreferenced(hit) == len(
            set(hit) - {b for held in self.held for b in held}
        )
        self.blocks.acquire(hit)
        self.held.append(hit)

    @invariant()
    def nothing_is_lost(self):
        self.blocks.check()
        distinct = {block_id for held in self.held for block_id in held}
        assert self.blocks.num_free == NUM_BLOCKS - len(distinct)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_equal_prefixes_have_equal_hashes_and_others_do_not():
    """Oracle: the definition of a hash chain."""
    first = block_hash(ROOT_HASH, [1, 2, 3])
    assert first == block_hash(ROOT_HASH, [1, 2, 3])
    assert (
        len(
            {
                first,
                block_hash(first, [1, 2, 3]),
                block_hash(ROOT_HASH, [1, 2, 4]),
                block_hash(first, [1, 2]),
            }
        )
        == 4
    )


def test_the_least_recently_released_block_is_reused_first_and_a_tail_before_its_head():
    """Oracle: the order written in the docstring of `release`."""
    blocks = BlockManager(4, BLOCK_SIZE, is_prefix_cached=True)
    old, new = blocks.allocate(2), blocks.allocate(2)
    for block_ids, token in ((old, 1), (new, 2)):
        parent = ROOT_HASH
        for block_id in block_ids:
            parent = block_hash(parent, [token] * BLOCK_SIZE)
            blocks.register(block_id, parent)
    blocks.release(old)
    blocks.release(new)
    assert blocks.allocate(4) == [*reversed(old), *reversed(new)]
    assert blocks.num_cached == 0


def test_without_prefix_cache_nothing_is_found():
    """Oracle: the flag's meaning."""
    blocks = BlockManager(2, BLOCK_SIZE, is_prefix_cached=False)
    digest = block_hash(ROOT_HASH, [1, 2, 3])
    blocks.register(blocks.allocate(1)[0], digest)
    assert blocks.match([digest]) == []


def test_a_prefix_is_found_under_its_own_salt_only():
    """Oracle: no salt, two salts, and a salt that spells the other's hash."""
    tricky = root_hash("one").decode("latin-1")
    salts = ("", "one", "two", tricky, "\ud800")
    assert root_hash("") == ROOT_HASH
    assert len({block_hash(root_hash(salt), [1, 2, 3]) for salt in salts}) == len(salts)
