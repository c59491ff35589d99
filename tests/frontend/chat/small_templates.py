"""Small chat templates with the habits of models' own: what each refuses, drops or puts elsewhere, and nothing more."""

from typing import NamedTuple


class SmallTemplate(NamedTuple):
    """A template, and the traits that it lacks where tools are given."""

    source: str
    lacks: frozenset[str]


def _template(source: str, *lacks: str) -> SmallTemplate:
    return SmallTemplate("".join(line.strip() for line in source.splitlines()), frozenset(lacks))


_TOOLS = "{% if tools %}<|tools|>{{ tools | tojson }} in <tool_call><|end|>{% endif %}"
_CALLS = "{% for c in m.tool_calls or [] %}<|call|>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
_PROMPT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
_PLAIN_MESSAGE = "<|{{ m.role }}|>{{ m.content }}<|end|>"

SMALL_TEMPLATES: dict[str, SmallTemplate] = {
    # Any role in any order, as ChatML; no tools.
    "any_role": _template(
        "{% for m in messages %}" + _PLAIN_MESSAGE + "{% endfor %}" + _PROMPT,
        *("tools", "tool_calls", "tool_results", "text_with_call", "several_calls", "unanswered_call"),
    ),
    # Gemma 2: users and assistants in turns, no system message, no tools.
    "turns_only": _template(
        """{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
        {% for m in messages %}
        {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
        """
        + _PLAIN_MESSAGE
        + "{% endfor %}"
        + _PROMPT,
        *("tools", "system", "developer", "two_systems", "late_system", "two_users", "two_assistants", "no_user"),
        *("assistant_first", "tool_calls", "tool_results", "text_with_call", "text_before_call", "several_calls"),
        *("result_alone", "unanswered_call"),
    ),
    # Mistral Small: a system message first, turns in which calls and results do not count, ids of nine characters.
    "short_ids": _template(
        """{% if messages[0].role == 'system' %}<|system|>{{ messages[0].content }}{% set rest = messages[1:] %}
        {% else %}{% set rest = messages %}{% endif %}{% set ns = namespace(turn=0) %}
        {% for m in rest if m.role in ('user', 'system', 'developer') or (m.role == 'assistant' and not m.tool_calls) %}
        {% if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
        {% set ns.turn = ns.turn + 1 %}{% endfor %}
        """
        + _TOOLS
        + """{% for m in rest %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}
        {{ raise_exception('ids have 9 characters') }}{% endif %}{% endfor %}
        {% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}
        {% endif %}<|{{ m.role }}|>{% if m.tool_calls %}"""
        + _CALLS
        + "{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}",
        *("developer", "two_systems", "late_system", "two_users", "two_assistants", "assistant_first"),
        *("text_with_call", "text_before_call", "unanswered_call", "late_result", "user_after_result", "call_ids"),
    ),
    # Mistral Nemo: the system message stands in the last user's, so it is lost behind a result.
    "system_last": _template(
        """{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
        {% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
        {% for m in rest %}{% if m.role == 'user' %}
        {% if loop.last %}{{ system }}{% endif %}<|user|>{{ m.content }}"""
        + _TOOLS
        + """<|end|>{% elif m.role in ('assistant', 'tool') %}<|{{ m.role }}|>{{ m.content }}"""
        + _CALLS
        + "<|end|>{% endif %}{% endfor %}",
        *("developer", "two_systems", "late_system", "no_user", "assistant_first", "system_before_result"),
    ),
    # Qwen 3.5: a system message first or not at all, no other role, and at least one user.
    "system_first": _template(
        _TOOLS
        + """{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}
        {{ raise_exception('No user query found') }}{% endif %}
        {% for m in messages %}{% if m.role == 'system' and not loop.first %}
        {{ raise_exception('System message must be at the beginning') }}{% endif %}
        {% if m.role not in ('system', 'user', 'assistant', 'tool') %}{{ raise_exception('Unexpected role') }}
        {% endif %}<|{{ m.role }}|>{{ m.content }}"""
        + _CALLS
        + "<|end|>{% endfor %}"
        + _PROMPT,
        *("developer", "two_systems", "late_system", "no_user"),
    ),
    # Qwen 2.5: other roles vanish.
    "drops_roles": _template(
        _TOOLS
        + """{% for m in messages %}{% if m.role in ('system', 'user', 'assistant', 'tool') %}<|{{ m.role }}|>
        {{ m.content }}"""
        + _CALLS
        + "<|end|>{% endif %}{% endfor %}"
        + _PROMPT,
        "developer",
    ),
    # Llama 3: one call a message, without its text.
    "single_calls": _template(
        _TOOLS
        + """{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}
        {{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}<|assistant|>"""
        + _CALLS
        + "<|end|>{% else %}"
        + _PLAIN_MESSAGE
        + "{% endif %}{% endfor %}"
        + _PROMPT,
        *("text_with_call", "several_calls"),
    ),
    # gpt-oss: a first system or developer message, tools that have a description, results that follow a call.
    "developer_first": _template(
        """{% if messages[0].role in ('system', 'developer') %}<|developer|>{{ messages[0].content }}{% endif %}
        {% for t in tools or [] %}{{ t.function.name }}{{ '//' + t.function.description }}{% endfor %}
        {% set ns = namespace(called=false) %}{% for m in messages %}
        {% if m.role == 'assistant' and '<|channel|>final<|message|>' in m.content %}{{ raise_exception('tags') }}
        {% elif m.role == 'assistant' and m.tool_calls %}{% set ns.called = true %}<|call|>
        {{ m.thinking }}{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments | tojson }}
        {% elif m.role in ('user', 'assistant') %}"""
        + _PLAIN_MESSAGE
        + """{% elif m.role == 'tool' %}{% if not ns.called %}{{ raise_exception('no call') }}{% endif %}
        <|result|>{{ m.content }}{% endif %}{% endfor %}"""
        + _PROMPT,
        *("tool_descriptions", "two_systems", "late_system", "text_with_call", "several_calls", "result_alone"),
        *("channel_tags", "reasoning"),
    ),
    # Ministral 3: reasoning is a part of the content, which may not be empty.
    "thinking_parts": _template(
        _TOOLS
        + """{% for m in messages %}<|{{ m.role }}|>
        {% if m.role == 'assistant' and not m.content and not m.tool_calls %}{{ raise_exception('empty') }}
        {% elif m.content is string %}{{ m.content }}{% else %}
        {% for p in m.content %}{{ p.thinking if p.type == 'thinking' else p.text }}{% endfor %}{% endif %}"""
        + _CALLS
        + "<|end|>{% endfor %}"
        + _PROMPT,
        *("empty_assistant", "reasoning_field"),
    ),
    # DeepSeek: system messages are collected at the beginning.
    "hoists_systems": _template(
        """{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"""
        + _TOOLS
        + """{% for m in messages if m.role in ('user', 'assistant', 'tool') %}<|{{ m.role }}|>{{ m.content }}"""
        + _CALLS
        + "<|end|>{% endfor %}"
        + _PROMPT,
        *("developer", "late_system"),
    ),
    # Functionary: arguments are a text.
    "text_arguments": _template(
        _TOOLS
        + """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}
        {{ '<|call|>' + c.function.name + c.function.arguments }}{% endfor %}<|end|>{% endfor %}"""
        + _PROMPT,
        "object_arguments",
    ),
    # LFM2: tools are shown, and of messages the content alone.
    "content_only": _template(
        _TOOLS.replace("<tool_call>", "a form of its own")
        + "{% for m in messages %}"
        + _PLAIN_MESSAGE
        + "{% endfor %}"
        + _PROMPT,
        *("tool_calls", "text_with_call", "several_calls", "unanswered_call"),
    ),
    # Models of images: content is a list of parts.
    "parts": _template(
        _TOOLS
        + """{% for m in messages %}<|{{ m.role }}|>{% for p in m.content %}{{ p['text'] }}{% endfor %}"""
        + _CALLS
        + "<|end|>{% endfor %}"
        + _PROMPT,
        "text_content",
    ),
    # Hermes 2's named template for tools: without a list of them it fails.
    "tools_needed": _template(
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        + _CALLS
        + "<|end|>{% endfor %}"
        + _PROMPT,
        "no_tools",
    ),
}
