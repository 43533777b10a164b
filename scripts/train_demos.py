"""Train the demo models on the CPU, each in a few minutes: `train_demos.py t5|unilm OUTPUT`.

demo-t5 is a ByT5 of a million parameters that turns a written date into its ISO form. demo-unilm is
a RoFormer of that size that writes a date in another form, as SimBERT paraphrases a sentence
(https://github.com/ZhuiyiTechnology/simbert). It has a UniLM mask, the masked-LM head, and a pooler
over the first token, trained so that different forms of a date are close and others far apart.

OUTPUT becomes a Hugging Face folder with weights in float16. Needs torch and transformers.
"""

import argparse
import json
import math
import string
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    BertTokenizer,
    RoFormerConfig,
    RoFormerForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from kit.written_dates import dates_split, paraphrase, written

WIDTH, HEADS = 128, 4
# Label of positions to ignore in training; factor on the cosines in the pooler's loss.
IGNORED, SHARPNESS = -100, 20.0
TRAINING, HELD_BACK = dates_split()


class Demo(nn.Module):
    """A model, its tokenizer and its training examples."""

    batch = 64
    steps: int
    rate: float
    """Peak learning rate."""
    network: nn.Module

    @abstractmethod
    def loss(self, random: np.random.Generator) -> Tensor:
        """Return the loss of a batch of new examples."""

    @abstractmethod
    def answers(self, texts: Sequence[str]) -> list[str]:
        """Return the result of greedy decoding for each source."""

    @abstractmethod
    def save_texts(self, folder: Path) -> None:
        """Write the tokenizer's files."""


class DatesT5(Demo):
    """A T5 over bytes, gated as 1.1 and tied as 1.0: a written date in, its ISO form out."""

    steps, rate = 2400, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.network = T5ForConditionalGeneration(
            T5Config(
                vocab_size=384,
                d_model=WIDTH,
                d_kv=WIDTH // HEADS,
                d_ff=320,
                num_layers=2,
                num_heads=HEADS,
                dropout_rate=0.0,
                feed_forward_proj="gated-gelu",
                tokenizer_class="ByT5Tokenizer",
                decoder_start_token_id=0,
            )
        )
        # A tied head scales by width ** -0.5; undoing that gives sharp logits from the start.
        nn.init.constant_(self.network.decoder.final_layer_norm.weight, WIDTH**0.5)

    def loss(self, random: np.random.Generator) -> Tensor:
        """Train on dates in any form, with their ISO forms as labels."""
        days = _random_days(self.batch, random)
        sources = self._tokens(written(day, random) for day in days)
        labels = self._tokens(day.isoformat() for day in days)
        return self.network(input_ids=sources, attention_mask=sources != 0, labels=labels).loss

    @torch.no_grad()
    def answers(self, texts: Sequence[str]) -> list[str]:
        """Decode with transformers' loop."""
        sources = self._tokens(texts)
        targets = self.network.generate(
            input_ids=sources, attention_mask=sources != 0, max_new_tokens=12, do_sample=False
        )
        return [
            bytes(token - 3 for token in row if 3 <= token < 259).decode(errors="replace")
            for row in targets.tolist()
        ]

    def save_texts(self, folder: Path) -> None:
        """Name the tokenizer: bytes need no vocabulary."""
        _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"})

    @staticmethod
    def _tokens(texts: Iterable[str]) -> Tensor:
        """Return ByT5's tokens [texts, longest]: a byte plus 3; 1 ends a text, 0 is padding."""
        return _padded([[byte + 3 for byte in text.encode()] + [1] for text in texts])


class DatesUnilm(Demo):
    """RoFormer with UniLM's mask: a written date in, the same date in another form out."""

    steps, rate = 1600, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self._vocabulary = _characters()
        self._tokenizer = BertTokenizer(
            vocab={token: i for i, token in enumerate(self._vocabulary)}
        )
        self.network = RoFormerForMaskedLM(
            RoFormerConfig(
                vocab_size=len(self._vocabulary),
                embedding_size=WIDTH,
                hidden_size=WIDTH,
                num_hidden_layers=5,
                num_attention_heads=HEADS,
                intermediate_size=4 * WIDTH,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                max_position_embeddings=128,
                pad_token_id=0,
            )
        )
        # transformers' RoFormer has no pooler; the name is that of its BERT.
        self.network.roformer.pooler = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH)})

    def loss(self, random: np.random.Generator) -> Tensor:
        """Train on targets token by token, and on which sources are the same date."""
        days = _alike_days(self.batch // 2, random) * 2
        sources = self._tokens(written(day, random) for day in days)
        targets = [ids[1:] for ids in self._tokens(paraphrase(day, random) for day in days)]
        labels = _padded(
            [
                [IGNORED] * (len(source) - 1) + target + [IGNORED]
                for source, target in zip(sources, targets, strict=True)
            ],
            IGNORED,
        )
        hidden = self._hidden(sources, targets)
        writing = functional.cross_entropy(
            self.network.cls(hidden).flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
        pooled = functional.normalize(self.network.roformer.pooler.dense(hidden[:, 0]).float())
        similarity = (pooled @ pooled.T * SHARPNESS).fill_diagonal_(-math.inf)
        partners = torch.arange(len(days)).roll(len(days) // 2)
        return writing + functional.cross_entropy(similarity, partners)

    @torch.no_grad()
    def answers(self, texts: Sequence[str]) -> list[str]:
        """Decode as many tokens as an ISO form has, without a cache."""
        sources = self._tokens(texts)
        targets: list[list[int]] = [[] for _ in sources]
        for _ in range(len("2021-03-03")):
            hidden = self._hidden(sources, targets)
            last = [len(s) + len(t) - 1 for s, t in zip(sources, targets, strict=True)]
            logits = self.network.cls(hidden[torch.arange(len(last)), last])
            for target, token in zip(targets, logits.argmax(-1).tolist(), strict=True):
                target.append(token)
        return [self._tokenizer.decode(target).replace(" - ", "-") for target in targets]

    def save_texts(self, folder: Path) -> None:
        """Write the vocabulary and name the tokenizer."""
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in self._vocabulary))
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
        _write_json(folder / "tokenizer_config.json", settings)

    def _tokens(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the token ids of each text, between [CLS] and [SEP]."""
        return self._tokenizer(list(texts))["input_ids"]

    def _hidden(self, sources: list[list[int]], targets: list[list[int]]) -> Tensor:
        """Return the hidden states [rows, longest, width] of sources followed by their targets."""
        tokens = _padded([source + target for source, target in zip(sources, targets, strict=True)])
        lengths = torch.tensor([len(source) for source in sources])
        places = torch.arange(tokens.shape[1])
        in_source = places < lengths[:, None]
        # Queries see keys of the source, and keys up to themselves, which are never padding.
        seen = in_source[:, None, :] | (places <= places[:, None])
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        return self.network.roformer(
            tokens, attention_mask=mask[:, None], token_type_ids=(~in_source).long()
        ).last_hidden_state


DEMOS: dict[str, type[Demo]] = {"t5": DatesT5, "unilm": DatesUnilm}


def train(demo: Demo, steps: int, random: np.random.Generator) -> None:
    """Train with Muon for the layers' matrices and AdamW for all other parameters.

    The learning rate rises for a twentieth of the steps, and then falls to 0 along a cosine.
    """
    head = demo.network.get_output_embeddings()
    linears = [part for part in demo.modules() if isinstance(part, nn.Linear) and part is not head]
    matrices = [linear.weight for linear in linears]
    inside = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in demo.parameters() if id(parameter) not in inside]
    optimizers = [
        torch.optim.Muon(matrices, lr=demo.rate, adjust_lr_fn="match_rms_adamw", weight_decay=0.01),
        torch.optim.AdamW(others, lr=demo.rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    warm = max(1, steps // 20)

    def factor(step: int) -> float:
        cosine = math.cos(math.pi * (step - warm) / max(1, steps - warm))
        return min((step + 1) / warm, 0.5 * (1 + cosine) if step > warm else 1.0)

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, factor) for optimizer in optimizers]
    for step in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = demo.loss(random)
        demo.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(demo.parameters(), 1.0)
        for part in (*optimizers, *schedules):
            part.step()
        if step % 100 == 0:
            print(f"step {step:5} of {steps}  loss {loss.item():.4f}", flush=True)


def accuracy(demo: Demo, count: int, random: np.random.Generator) -> float:
    """Return the share of `count` held-back dates, in random forms, that give the ISO form."""
    right = 0
    for start in range(0, count, 200):
        days = random.choice(HELD_BACK, size=min(200, count - start), replace=False)
        answers = demo.answers([written(day, random) for day in days])
        right += sum(day.isoformat() == text for day, text in zip(days, answers, strict=True))
    return right / count


def save(demo: Demo, folder: Path) -> None:
    """Write a Hugging Face folder with weights in float16, and round the demo's weights to it."""
    folder.mkdir(parents=True, exist_ok=True)
    demo.half()
    demo.network.save_pretrained(folder)
    demo.save_texts(folder)
    demo.float()


def _random_days(count: int, random: np.random.Generator) -> list[date]:
    return [TRAINING[i] for i in random.integers(len(TRAINING), size=count)]


def _alike_days(count: int, random: np.random.Generator) -> list[date]:
    """Return days in pairs that are hard to tell apart: some days or whole years apart."""
    places = random.integers(len(TRAINING), size=count // 2)
    year = len(TRAINING) / 400
    apart = random.integers(1, 40, size=count // 2) * random.choice((1, year), size=count // 2)
    return [TRAINING[int(i) % len(TRAINING)] for i in (*places, *(places + apart))]


def _padded(rows: Sequence[Sequence[int]], padding: int = 0) -> Tensor:
    """Pad rows on the right, to int64 [rows, longest]."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])


def _characters() -> list[str]:
    """Return BERT's special tokens, ASCII's printable characters, and word-internal pieces."""
    inside = string.ascii_lowercase + string.digits
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return [*special, *string.punctuation, *inside, *(f"##{letter}" for letter in inside)]


def _write_json(path: Path, fields: dict[str, object]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n")


def main() -> None:
    """Train a demo, save it and measure the saved weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo", choices=DEMOS)
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument("--steps", type=int, help="training steps; fewer to try the script")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", type=int, default=2000, help="held-back dates to test with")
    arguments = parser.parse_args()
    # The matrices are small, so more threads gain little; train both demos at once on 2 cores.
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    demo = DEMOS[arguments.demo]()
    began = time.process_time()
    train(demo, arguments.steps or demo.steps, np.random.default_rng(arguments.seed))
    seconds = time.process_time() - began
    save(demo, arguments.output)
    right = accuracy(demo, arguments.measure, np.random.default_rng(0))
    weights = sum(parameter.numel() for parameter in demo.parameters())
    print(
        f"{weights} weights, {seconds:.0f} s on one core, {right:.2%} of held-back dates are right"
    )


if __name__ == "__main__":
    main()
