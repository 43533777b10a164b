"""LlamaIndex: structured output and tool calls."""

import json

from asked import QUESTION, STATEMENT, URL, Person
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def weather(town: str) -> str:
    """Tell the weather of a town."""
    return f"It rains in {town}."


settings = {
    "model": "demo-chat",
    "api_base": URL,
    "api_key": "none",
    "is_chat_model": True,
    "temperature": 0,
    "max_tokens": 200,
}
model = OpenAILike(**settings, is_function_calling_model=True)
asked = ChatMessage(role="user", content=STATEMENT)
results = {}
results["tools"] = model.as_structured_llm(Person).chat([asked]).raw.model_dump()
native = OpenAILike(**settings, should_use_structured_outputs=True)
results["json_schema"] = native.as_structured_llm(Person).chat([asked]).raw.model_dump()
tool = FunctionTool.from_defaults(weather)
called = model.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
[call] = model.get_tool_calls_from_response(called)
results["tool call"] = [call.tool_name, call.tool_kwargs]
print(json.dumps(results))
