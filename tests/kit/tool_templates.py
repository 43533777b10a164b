"""Chat templates with tools, in the forms of families of models, and a conversation for them."""

from typing import Any

HERMES = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "You may call these functions:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\nAnswer with <tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n\
</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

MISTRAL = """{%- set last = messages | selectattr('role', 'equalto', 'user') | list | length %}
{{- bos_token }}
{%- set ns = namespace(user=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.user = ns.user + 1 %}
        {%- if tools and ns.user == last %}
            {{- '[AVAILABLE_TOOLS] ' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}
                {{- raise_exception('Tool call IDs should have length 9!') }}
            {%- endif %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] + ', "id": "' + call.id + '"}' }}
            {{- ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + ', "call_id": "' }}
        {{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

LLAMA = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role in ('system', 'user') %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {%- if loop.first and tools %}
            {{- 'Answer with {"name": function name, "parameters": its arguments}.\\n\\n' }}
            {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
        {%- endif %}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- elif message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson }}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + message.content }}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL_NAMED = MISTRAL.replace(
    "{{- '[TOOL_CALLS] [' }}", "{#- [TOOL_CALLS]name[ARGS]{} -#}{{- '[TOOL_CALLS] [' }}"
)

TOOL_TEMPLATES = {"Hermes": HERMES, "Mistral": MISTRAL, "Llama": LLAMA}

CODER = HERMES.replace("{\\\\n", "").replace("<tool_call>\\n{", "<tool_call>\\n<function=")
NO_TOOLS = "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a day, in °C.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "such as 東京"},
                "days": {"type": "integer", "minimum": 0},
            },
            "required": ["city"],
        },
    },
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "Tells the time.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def call(name: str, arguments: Any, number: int = 1) -> dict[str, Any]:
    return {
        "id": f"call0000{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def conversation(arguments: Any) -> list[dict[str, Any]]:
    """Return a conversation with one call, answered."""
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Will it rain in Nantes?"},
        {"role": "assistant", "content": "", "tool_calls": [call("get_weather", arguments)]},
        {
            "role": "tool",
            "name": "get_weather",
            "tool_call_id": "call00001",
            "content": '{"rain": true, "degrees": 11.5}',
        },
        {"role": "assistant", "content": "Yes, at 11.5 °C."},
        {"role": "user", "content": "And what time is it?"},
    ]
