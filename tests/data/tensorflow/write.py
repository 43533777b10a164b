"""Write the tiny checkpoints beside this file, in the layout of bert4keras's releases.

Needs tensorflow-cpu (2.21 wrote these), which nothing else here needs: `python write.py`. Number n
of a variable is sin(k + n / 7), k being the place of its name among all, sorted, so that whoever
reads them knows them without a second file.
"""

import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
# Sizes that differ wherever two axes could be mistaken for each other.
ROFORMER = {
    **{"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 11},
    **{"num_hidden_layers": 2, "hidden_act": "gelu", "type_vocab_size": 2, "embedding_size": 6},
}
SIMBERT = {
    **{"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 10},
    **{"num_hidden_layers": 2, "hidden_act": "gelu", "type_vocab_size": 2},
    "max_position_embeddings": 9,
}
T5_PEGASUS = {
    **{"hidden_size": 6, "num_attention_heads": 2, "attention_head_size": 4},
    **{"intermediate_size": 10, "vocab_size": 9, "num_hidden_layers": 2},
    "hidden_act": ["gelu", "linear"],
}
BUCKETS = 32
ONE = {"one": (4, 3)}


def numbers(shapes):
    """Name to float32 array of every variable."""
    return {
        name: np.sin(k + np.arange(np.prod(shapes[name])) / 7)
        .astype(np.float32)
        .reshape(shapes[name])
        for k, name in enumerate(sorted(shapes))
    }


def bert_shapes(config):
    """Google BERT's names and shapes; RoFormer's without learned positions."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    embedded = config.get("embedding_size", width)
    dense = {
        "cls/predictions/transform/dense": (width, embedded),
        "bert/pooler/dense": (width, width),
    }
    norms = {"bert/embeddings": embedded, "cls/predictions/transform": embedded}
    if embedded != width:
        dense["bert/encoder/embedding_hidden_mapping_in"] = (embedded, width)
    for i in range(config["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{i}"
        dense |= {
            f"{layer}/attention/self/{name}": (width, width) for name in ("query", "key", "value")
        }
        dense |= {
            f"{layer}/attention/output/dense": (width, width),
            f"{layer}/intermediate/dense": (width, inner),
            f"{layer}/output/dense": (inner, width),
        }
        norms |= {f"{layer}/attention/output": width, f"{layer}/output": width}
    shapes = {
        "bert/embeddings/word_embeddings": (config["vocab_size"], embedded),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], embedded),
        "cls/predictions/output_bias": (config["vocab_size"],),
    }
    if "max_position_embeddings" in config:
        positions = config["max_position_embeddings"]
        shapes["bert/embeddings/position_embeddings"] = (positions, embedded)
    for name, shape in dense.items():
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name, size in norms.items():
        shapes |= {f"{name}/LayerNorm/{leaf}": (size,) for leaf in ("beta", "gamma")}
    return shapes


def t5_shapes(config):
    """Names and shapes of mT5, which T5-PEGASUS keeps."""
    width, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    mixed = config["num_attention_heads"] * config["attention_head_size"]
    shapes = {"shared/embedding": (vocab, width), "decoder/logits/kernel": (width, vocab)}
    for stack, parts in (
        ("encoder", ("SelfAttention", "")),
        ("decoder", ("SelfAttention", "EncDecAttention", "")),
    ):
        table = f"{stack}/block_000/layer_000/SelfAttention/relative_attention_bias"
        shapes |= {
            f"{stack}/rms_norm/scale": (width,),
            table: (config["num_attention_heads"], BUCKETS),
        }
        for i in range(config["num_hidden_layers"]):
            for part, attention in enumerate(parts):
                layer = f"{stack}/block_{i:03}/layer_{part:03}"
                shapes[f"{layer}/rms_norm/scale"] = (width,)
                if attention:
                    shapes |= {f"{layer}/{attention}/{name}": (width, mixed) for name in "qkv"}
                    shapes[f"{layer}/{attention}/o"] = (mixed, width)
                else:
                    dense = f"{layer}/DenseReluDense"
                    shapes |= {f"{dense}/wi_{n}/kernel": (width, inner) for n in range(2)}
                    shapes[f"{dense}/wo/kernel"] = (inner, width)
    return shapes


def vocabulary(size):
    """As many tokens as the model has, those with a meaning first."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return [*special, *"春眠不覺曉處"][:size]


def save(path, variables, shards=1, kind="float32", extra=(), partitioner=None):
    """Write a checkpoint by TensorFlow's own Saver, the variables by turns in `shards` shards."""
    import tensorflow as tf

    v1 = tf.compat.v1
    devices = v1.ConfigProto(device_count={"CPU": shards})
    with tf.Graph().as_default(), v1.Session(config=devices) as session:
        for n, (name, value) in enumerate(variables.items()):
            with tf.device(f"/cpu:{n % shards}"):
                initializer = tf.cast(value, kind)
                v1.get_variable(name, initializer=initializer, partitioner=partitioner)
        for name, value in extra:
            v1.get_variable(name, initializer=value)
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=shards > 1)
        saver.save(session, str(path), write_meta_graph=False, write_state=False)


def write(checkpoint, config_name, config, shapes, **options):
    """Write a folder: configuration, vocabulary and checkpoint."""
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.with_name(config_name).write_text(json.dumps(config, indent=2) + "\n")
    tokens = vocabulary(config["vocab_size"])
    checkpoint.with_name("vocab.txt").write_text("".join(f"{x}\n" for x in tokens), "utf-8")
    save(checkpoint, numbers(shapes), **options)


def main():
    """Write all."""
    import tensorflow as tf

    name = "bert_model.ckpt"
    write(HERE / "roformer-sim" / name, "bert_config.json", ROFORMER, bert_shapes(ROFORMER))
    slot = "bert/encoder/layer_0/attention/self/query/kernel/adam_"
    extra = [
        *((f"{slot}{x}", np.ones((8, 8), np.float32)) for x in "mv"),
        ("global_step", np.int64(7)),
        ("cls/seq_relationship/output_bias", np.ones(2)),
        ("comment", "a text"),
    ]
    shapes = bert_shapes(SIMBERT)
    write(HERE / "simbert" / name, "bert_config.json", SIMBERT, shapes, shards=3, extra=extra)
    write(HERE / "t5-pegasus" / "model.ckpt", "config.json", T5_PEGASUS, t5_shapes(T5_PEGASUS))
    kinds, one = HERE / "kinds", numbers(ONE)
    kinds.mkdir(exist_ok=True)
    for kind in ("float16", "bfloat16", "float64"):
        save(kinds / f"{kind}.ckpt", one, kind=kind)
    halves = tf.compat.v1.fixed_size_partitioner(2)
    save(kinds / "sliced.ckpt", one, partitioner=halves)


if __name__ == "__main__":
    main()
