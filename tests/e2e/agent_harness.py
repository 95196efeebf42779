# SPDX-License-Identifier: Apache-2.0
"""What the tests of agents' APIs share: a model whose template shows all that they send, and streams of
events that have names."""
import json
import os
import tempfile

from harness import DEMO, Frontend

CHAT = "/v1/chat/completions"
# Shows each message with all that agents put there.
TEMPLATE = """{%- for t in tools or [] %}[{{ t.function.name }}:{{ t.function.description }}]{% endfor %}
{%- for m in messages %}<{{ m.role }}>
{%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.name }}{{ c.function.arguments }}{% endfor %}
{%- endfor %}<assistant>{{ reasoning_effort or '' }}"""


# The same, of a model that writes calls and reasoning as Qwen does.
CALLS = "{# <think></think> <tool_call></tool_call> #}" + TEMPLATE
# What it says: text before and between them, arguments with what JSON must escape.
SAID = """<think>
Hm, \u00e9
</think>

Let me see.
<tool_call>
{"name": "f", "arguments": {"a": 1, "b": "x\\"y\\n\u00e9"}}
</tool_call>
<tool_call>
{"name": "g", "arguments": {}}
</tool_call>"""
ARGUMENTS = [{"a": 1, "b": 'x"y\n\u00e9'}, {}]


class Caller(Frontend):
    """A server whose model always says `said`."""

    def __init__(self, said=SAID, **options):
        self.files = tempfile.TemporaryDirectory()
        path = os.path.join(self.files.name, "said")
        with open(path, "w") as f:
            f.write(said)
        super().__init__(tokenizer=agent_model(self.files.name, CALLS), say=path, **options)


def agent_model(folder, template=TEMPLATE):
    """The bundled model's tokenizer with a template for agents."""
    for name in ("tokenizer.json", "config.json"):
        os.symlink(os.path.join(DEMO, name), os.path.join(folder, name))
    with open(os.path.join(DEMO, "tokenizer_config.json")) as f:
        config = dict(json.load(f), chat_template=template)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f)
    return folder


TOOLS_TEMPLATE = """{% if tools %}{{ tools | tojson }} MARKS
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}
CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""


def model_with_marks(folder, marks, end=""):
    """The bundled model with a template that has the marks of a family's."""
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        os.symlink(os.path.join(DEMO, name), os.path.join(folder, name))
    with open(os.path.join(DEMO, "tokenizer_config.json")) as f:
        config = json.load(f)
    config["chat_template"] = TOOLS_TEMPLATE.replace("MARKS", marks) + end
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f)
    return folder


def events(s, path, **fields):
    """[(event, data)] of a stream."""
    c = s.connect()
    c.request("POST", path, json.dumps(dict(fields, stream=True)), {"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read().decode()
    assert r.status == 200, text
    assert r.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    out = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        out.append((name[7:], json.loads(data[6:])))
        assert out[-1][1]["type"] == out[-1][0], block
    return out
