"""Firefox's translation models: files that are damaged, missing or of other models."""

import pytest

from kit.errors import one_line
from kit.marian_files import (
    INTGEMM8,
    MODEL,
    SETTINGS,
    marian_bytes,
    packed,
    pieces,
    random_arrays,
    vocabulary_size,
    write_bergamot,
)
from kvcast.checkpoints.source import open_checkpoint
from kvcast.errors import InputMissingError, KvcastError

VOCABULARY = "vocab.xxyy.spm"


@pytest.fixture
def copied(tmp_path):
    return write_bergamot(tmp_path / "model")


REFUSED = [
    ({"transformer_decoder_autoreg": "self-attention"}, "must be 'rnn', not 'self-attention'"),
    ({"dec_cell": "gru"}, "dec-cell must be 'ssru', not 'gru'"),
    ({"tied_embeddings_all": False}, "tied-embeddings-all must be True, not False"),
    ({"transformer_preprocess": "n"}, "transformer-preprocess 'n' is not supported"),
    ({"transformer_postprocess": "da"}, "transformer-postprocess 'da' is not supported"),
    ({"transformer_train_position_embeddings": True}, "must be False, not True"),
    ({"transformer_tied_layers": [1, 1]}, "must be [], not [1, 1]"),
    ({"transformer_ffn_activation": "prelu"}, "'prelu' is not supported"),
    ({"transformer_heads": 5}, "width 32 is not a multiple of 5 heads"),
    ({"dim_emb": "x"}, "dim-emb must be a whole number"),
    ({"dim_emb": 48}, "Wemb has shape"),
    ({"dec_depth": 4}, "no tensor decoder_l4_context_Wk"),
    ({"enc_depth": 1}, "tensor encoder_l2_ffn_W1 has no place"),
]


@pytest.mark.parametrize(("settings", "says"), REFUSED)
def test_other_models_are_one_line(tmp_path, settings, says):
    message = one_line(KvcastError, open_checkpoint, write_bergamot(tmp_path, **settings))
    assert says in message
    assert MODEL in message


def test_missing_and_ambiguous_files_are_one_line(copied):
    vocabulary, model = copied / VOCABULARY, copied / MODEL
    second = vocabulary.rename(copied / "srcvocab.xxyy.spm")
    (copied / "trgvocab.xxyy.spm").write_bytes(pieces())
    assert "different vocabularies" in one_line(KvcastError, open_checkpoint, copied)
    second.unlink()
    (copied / "trgvocab.xxyy.spm").rename(copied / f"{VOCABULARY}.gz")
    assert "decompress it first" in one_line(InputMissingError, open_checkpoint, copied)
    (copied / f"{VOCABULARY}.gz").unlink()
    assert "no *.spm in" in one_line(InputMissingError, open_checkpoint, copied)
    model.rename(copied / f"{MODEL}.zst")
    assert "decompress it first" in one_line(InputMissingError, open_checkpoint, copied)


WHOLE = marian_bytes(random_arrays(vocabulary_size()))
DAMAGE = [
    (WHOLE[:12], "ends within the number of items"),
    (WHOLE[:5000], "ends within"),
    (WHOLE[:-1], "ends within special:model.yml"),
    (b"\2" + WHOLE[1:], "its first number is 2"),
    (WHOLE[:8] + b"\xff" * 8 + WHOLE[16:], "ends within items"),
    (packed([("a\nb", INTGEMM8, (2, 2), b"")]), "a name is not text"),
    (packed([("a", 0x4102, (2, 2), b"")]), "type 0x4102: only float32 and intgemm8"),
    (packed([("a", INTGEMM8, (2, 0), b"")]), "has shape [2, 0]"),
    (packed([("a", INTGEMM8, (2,) * 5, b"")]), "has 5 axes"),
    (packed([("a", INTGEMM8, (2, 2), b"")]), "0 bytes do not make int8 (2, 2)"),
    (packed([("a", INTGEMM8, (2, 2), b"\0" * 9)]), "its factor is 0.0"),
    (packed([]), "has no special:model.yml"),
    (marian_bytes({}, SETTINGS), "there is no tensor Wemb"),
]


@pytest.mark.parametrize(("content", "says"), DAMAGE, ids=[says for _, says in DAMAGE])
def test_damage_is_one_line(copied, content, says):
    (copied / MODEL).write_bytes(content)
    assert says in one_line(KvcastError, open_checkpoint, copied)
