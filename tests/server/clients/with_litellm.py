"""LiteLLM: structured output, tool calls and streams."""

import json
import sys

import litellm
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    age: int


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
        api_base=f"{sys.argv[1]}/v1",
        api_key="none",
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_tokens=200,
        **options,
    )


results = {}
answer = complete("Ada is 36 years old.", response_format=Person)
results["json_schema"] = json.loads(answer.choices[0].message.content)
tools = {"tools": [WEATHER], "tool_choice": "required"}
[call] = complete("How is the weather in Nantes?", **tools).choices[0].message.tool_calls
results["tool call"] = [call.function.name, json.loads(call.function.arguments)]
chunks = list(complete("How is the weather in Nantes?", stream=True, **tools))
[call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
results["streamed tool call"] = [call.function.name, json.loads(call.function.arguments)]
print(json.dumps(results))
