"""LiteLLM: structured output, tool calls and streams."""

import json

import litellm
from asked import QUESTION, STATEMENT, URL, Person

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}},
            "required": ["town"],
        },
    },
}


def complete(content, **options):
    return litellm.completion(
        model="openai/demo-chat",
        api_base=URL,
        api_key="none",
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_tokens=200,
        **options,
    )


results = {}
answer = complete(STATEMENT, response_format=Person)
results["json_schema"] = json.loads(answer.choices[0].message.content)
tools = {"tools": [WEATHER], "tool_choice": "required"}
[call] = complete(QUESTION, **tools).choices[0].message.tool_calls
results["tool call"] = [call.function.name, json.loads(call.function.arguments)]
chunks = list(complete(QUESTION, stream=True, **tools))
[call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
results["streamed tool call"] = [call.function.name, json.loads(call.function.arguments)]
print(json.dumps(results))
