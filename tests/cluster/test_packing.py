"""Which prompts are answered together."""

from hypothesis import given
from hypothesis import strategies as st

from kvcast.cluster.mapping import packed

keys = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=40).map(
    lambda groups: sorted(groups, key=lambda key: key[0])
)


@given(keys, st.integers(1, 9))
def test_each_prompt_is_in_one_pack_with_all_that_say_the_same(keys, together: int):
    packs = packed(keys, together)
    assert sorted(i for pack in packs for i in pack) == list(range(len(keys)))
    for pack in packs:
        assert pack == sorted(pack)
        assert len({keys[i][0] for i in pack}) == 1
    for key in set(keys):
        assert sum(any(keys[i] == key for i in pack) for pack in packs) == 1


@given(keys, st.integers(1, 9))
def test_packs_are_no_larger_than_they_need_be(keys, together: int):
    for pack in packed(keys, together):
        for key in {keys[i] for i in pack}:
            others = [i for i in pack if keys[i] != key]
            last = max(pack, key=lambda i: keys.index(keys[i]))
            assert len(others) < together or key != keys[last]
