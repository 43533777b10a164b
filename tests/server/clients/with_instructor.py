"""instructor: structured output by tools, by a JSON Schema and by JSON."""

import json

import instructor
import openai
from asked import STATEMENT, URL, Person

client = openai.OpenAI(base_url=URL, api_key="none")
results = {}
modes = {
    instructor.Mode.TOOLS: "demo-chat",
    instructor.Mode.JSON_SCHEMA: "demo-chat",
    instructor.Mode.JSON: "json",  # its fields are in the prompt alone
}
for mode, model in modes.items():
    person = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=model,
        response_model=Person,
        messages=[{"role": "user", "content": STATEMENT}],
        temperature=0,
        max_tokens=200,
        max_retries=0,
    )
    results[mode.value] = person.model_dump()
print(json.dumps(results))
