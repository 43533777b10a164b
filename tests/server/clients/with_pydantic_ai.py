"""pydantic-ai: output by a tool, natively and by responses, and an agent's own tool."""

import json

from asked import QUESTION, STATEMENT, URL, Person
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=URL, api_key="none")
chat = OpenAIChatModel("demo-chat", provider=provider)
responses = OpenAIResponsesModel("demo-chat", provider=provider)
settings = {"temperature": 0, "max_tokens": 200}
ways = {
    "tool": (chat, ToolOutput(Person)),
    "native": (chat, NativeOutput(Person)),
    "responses": (responses, NativeOutput(Person)),
    "responses by a tool": (responses, ToolOutput(Person)),
}
results = {}
for name, (model, output) in ways.items():
    agent = Agent(model, output_type=output, model_settings=settings)
    results[name] = agent.run_sync(STATEMENT).output.model_dump()


def weather(town: str) -> str:
    """Tell the weather of a town."""
    called.append({"town": town})
    return "rain"


question = QUESTION
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    called = []
    model = kind("agent", provider=provider)
    agent = Agent(model, output_type=NativeOutput(Person), tools=[weather], model_settings=settings)
    results[f"output of {kind.__name__}"] = agent.run_sync(question).output.model_dump()
    [call] = called
    results[f"tool call of {kind.__name__}"] = ["weather", call]
print(json.dumps(results))
