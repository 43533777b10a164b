"""LlamaIndex: structured output and tool calls."""

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def weather(town: str) -> str:
    """Tell the weather of a town."""
    return f"It rains in {town}."


settings = {
    "model": "demo-chat",
    "api_base": f"{sys.argv[1]}/v1",
    "api_key": "none",
    "is_chat_model": True,
    "temperature": 0,
    "max_tokens": 200,
}
model = OpenAILike(**settings, is_function_calling_model=True)
asked = ChatMessage(role="user", content="Ada is 36 years old.")
results = {}
results["tools"] = model.as_structured_llm(Person).chat([asked]).raw.model_dump()
native = OpenAILike(**settings, should_use_structured_outputs=True)
results["json_schema"] = native.as_structured_llm(Person).chat([asked]).raw.model_dump()
tool = FunctionTool.from_defaults(weather)
called = model.chat_with_tools([tool], user_msg="How is the weather in Nantes?", tool_required=True)
[call] = model.get_tool_calls_from_response(called)
results["tool call"] = [call.tool_name, call.tool_kwargs]
print(json.dumps(results))
