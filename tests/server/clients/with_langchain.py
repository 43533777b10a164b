"""LangChain: structured output in each of its ways, and tool calls."""

import json

from asked import QUESTION, URL, Person
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def weather(town: str) -> str:
    """Tell the weather of a town."""
    return f"It rains in {town}."


settings = {"base_url": URL, "api_key": "none", "temperature": 0, "max_tokens": 200}
model = ChatOpenAI(model="demo-chat", **settings)
results = {}
for method in ("json_schema", "function_calling", "json_mode"):
    asked = "Ada is 36 years old. Answer in JSON with the keys name and age."
    person = model.with_structured_output(Person, method=method).invoke(asked)
    results[method] = person.model_dump()
question = HumanMessage(QUESTION)
[call] = model.bind_tools([weather], tool_choice="weather").invoke([question]).tool_calls
results["tool call"] = [call["name"], call["args"]]
streamed = None
for chunk in model.bind_tools([weather], tool_choice="required").stream([question]):
    streamed = chunk if streamed is None else streamed + chunk
[call] = streamed.tool_calls
results["streamed tool call"] = [call["name"], call["args"]]
agent = ChatOpenAI(model="agent", **settings).bind_tools([weather])
called = agent.invoke([question])
[call] = called.tool_calls
answer = agent.invoke([question, called, weather.invoke(call)])
results["answer to a tool"] = json.loads(answer.text)
print(json.dumps(results))
