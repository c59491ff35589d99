"""The page's modules by themselves, in a browser: Markdown, events, conversations, requests, metrics."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyllm.terminal_chat.chat_session import ChatSession
from tests.browser import Browser
from tests.terminal_chat.scripted_source import KeptDisplay, ScriptedSource

pytestmark = pytest.mark.services
# What a model may write, and the HTML of the nodes that it becomes.
MARKDOWN = [
    ("Hello *you*, **all** of ~~them~~", "<p>Hello <em>you</em>, <strong>all</strong> of <del>them</del></p>"),
    ("***both*** and *a **b** c*", "<p><em><strong>both</strong></em> and <em>a <strong>b</strong> c</em></p>"),
    ("*a **b***, **a *b* c**", "<p><em>a <strong>b</strong></em>, <strong>a <em>b</em> c</strong></p>"),
    ("2 * 3 * 4 and a_b_c", "<p>2 * 3 * 4 and a_b_c</p>"),
    ("# Title #\ntext", "<h3>Title</h3><p>text</p>"),
    ("a `<b>` c", "<p>a <code>&lt;b&gt;</code> c</p>"),
    ("- one\n- two\n  - three", "<ul><li>one</li><li>two<ul><li>three</li></ul></li></ul>"),
    ("3. c\n4. d", '<ol start="3"><li>c</li><li>d</li></ol>'),
    ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    ("> quote\n> more", "<blockquote><p>quote\nmore</p></blockquote>"),
    ("one\\*two", "<p>one*two</p>"),
    ("\\[ x and \\( y", "<p>\\[ x and \\( y</p>"),
    ("a \\) b \\] c", "<p>a \\) b \\] c</p>"),
    ("it costs $5 and $6, or US$7", "<p>it costs $5 and $6, or US$7</p>"),
    ("`\\(x\\)` and `$x$`", "<p><code>\\(x\\)</code> and <code>$x$</code></p>"),
    ("one  \ntwo", "<p>one<br>two</p>"),
    ("---", "<hr>"),
    ("<b onclick=alert(1)>x</b>", "<p>&lt;b onclick=alert(1)&gt;x&lt;/b&gt;</p>"),
    ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
    ("[x](data:text/html,hi)", "<p>[x](data:text/html,hi)</p>"),
    ("[x](/v1/models)", "<p>[x](/v1/models)</p>"),
]
LINK = '<a href="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'
LINKS = [
    ("[a *b*](https://c.d/e_(f))", LINK.format("https://c.d/e_(f)", "a <em>b</em>")),
    ("![picture](https://c.d/e.png)", LINK.format("https://c.d/e.png", "picture")),
    ("see https://c.d/e?f=1.", f"see {LINK.format('https://c.d/e?f=1', 'https://c.d/e?f=1')}."),
]
DOCUMENT = """# Title

Some *text* with `code` and
a second line.

- one
- two

  still two
  1. deep
- [x] done

| a | b |
|---|:-:|
| 1 | **2** |

```python
def f(x):
    # comment
    return "s" + 1
```
> quote
>
> - list

1. first

2. second

Last ~~line~~"""

RENDER = """
    const { MarkdownView } = await import("/chat/markdown.js");
    const root = document.createElement("div");
    const view = new MarkdownView(root);
    for (const text of arguments[0]) view.update(text, text === arguments[0].at(-1));
    return root.innerHTML;
"""


@pytest.fixture
def coloured(modules: Browser) -> Browser:
    """The same browser, once highlight.js is there."""
    script = 'return (await import("/chat/highlight.js")).highlighted("1", "c", false).children.length;'
    modules.until(lambda: modules.run(script), "highlight.js colours a number")
    return modules


@pytest.mark.parametrize(("text", "html"), [*MARKDOWN, *((text, f"<p>{html}</p>") for text, html in LINKS)])
def test_markdown_becomes_nodes_and_html_stays_text(modules: Browser, text: str, html: str) -> None:
    assert modules.run(RENDER, [text]) == html


def test_code_tables_and_tasks(modules: Browser) -> None:
    html = modules.run(RENDER, [DOCUMENT])
    assert '<td class="to-center"><strong>2</strong></td>' in html
    assert 'aria-label="done"' in html


COLOURS = [
    ("python", "def f(x):\n    # c\n    return 1", {"keyword": "def", "title": "f", "comment": "# c", "number": "1"}),
    ("console", "$ ls 'a'  # c", {"string": "'a'", "comment": "# c"}),
    ("json", '{"a": [1, true]}', {"attr": '"a"', "literal": "true"}),
    ("html", '<p class="a">', {"name": "p", "attr": "class", "string": '"a"'}),
    ("diff", "-a\n+b", {"deletion": "-a", "addition": "+b"}),
    ("c", "int main(void) { /* c */ }", {"type": "int", "comment": "/* c */"}),
    ("css", ".a { margin: 0 }", {"selector-class": ".a", "attribute": "margin"}),
    ("Vue", "<p>a</p>", {"name": "p"}),
    ("unknown", "return 1 // c", {"keyword": "return", "number": "1", "comment": "// c"}),
]


@pytest.mark.parametrize(("language", "code", "parts"), COLOURS)
def test_code_has_the_colours_of_its_language(
    coloured: Browser, language: str, code: str, parts: dict[str, str]
) -> None:
    whole, found = coloured.run(
        """
        const { highlighted } = await import("/chat/highlight.js");
        const node = highlighted(arguments[0], arguments[1], false);
        const texts = (kind) => [...node.querySelectorAll(`.code-${kind}`)].map((each) => each.textContent);
        return [node.textContent, Object.fromEntries(arguments[2].map((kind) => [kind, texts(kind)]))];
        """,
        code,
        language,
        list(parts),
    )
    assert whole == code
    assert [(kind, text in found[kind]) for kind, text in parts.items()] == [(kind, True) for kind in parts]


@pytest.mark.parametrize(
    ("language", "sign"),
    [("java", "a"), ("ts", "\n"), ("ruby", "  \n"), ("toml", "a."), ("cs", "a b "), ("cpp", "("), ("yaml", "a b ")],
)
def test_no_code_keeps_the_page_busy(coloured: Browser, language: str, sign: str) -> None:
    script = 'return (await import("/chat/highlight.js")).highlighted(arguments[0], arguments[1], false).textContent;'
    code = sign * (50_000 // len(sign))
    assert coloured.run(script, code, language) == code  # Bounded by the time that a script gets.


def test_code_in_no_language_has_no_colours(coloured: Browser) -> None:
    assert "<code>if 1</code>" in coloured.run(RENDER, ["```\nif 1\n```"])


def test_code_that_grows_is_there_at_once_and_has_all_its_colours_at_the_end(coloured: Browser) -> None:
    lines = [f"def f{number}(x): return {number}\n" for number in range(200)]
    shown, titles = coloured.run(
        """
        const { MarkdownView } = await import("/chat/markdown.js");
        const [begin, lines] = arguments;
        const view = new MarkdownView(document.createElement("div"));
        const lengths = [];
        const titles = () => view.root.querySelectorAll("li .code-title").length;
        for (let number = 1; number <= lines.length; number += 1) {
            view.update(begin + lines.slice(0, number).join(""));
            lengths.push(view.root.querySelector("li code").textContent.trimEnd().split("\\n").length);
        }
        const before = titles();
        view.update(begin + lines.join(""), true);
        return [lengths, [before, titles()]];
        """,
        "1. Do:\n   ```python\n   ",
        ["   " + line for line in lines],
    )
    assert shown == list(range(1, 201))
    assert 150 <= titles[0] < titles[1] == 200


def test_a_text_that_grows_is_at_the_end_as_if_it_had_come_at_once(coloured: Browser) -> None:
    pieces = [DOCUMENT[:end] for end in range(1, len(DOCUMENT) + 1)]
    assert coloured.run(RENDER, pieces) == coloured.run(RENDER, [DOCUMENT])


def test_blocks_are_spoken_once_when_they_have_ended(modules: Browser) -> None:
    spoken = modules.run(
        """
        const { MarkdownView } = await import("/chat/markdown.js");
        const spoken = [];
        const view = new MarkdownView(document.createElement("div"), (text) => spoken.push(text));
        for (let end = 1; end <= arguments[0].length; end += 1) view.update(arguments[0].slice(0, end));
        view.update(arguments[0], true);
        return spoken;
        """,
        "# A\n\nOne.\n\n```js\nx\ny\n```\nLast",
    )
    assert spoken == ["A", "One.", "js code, 2 lines", "Last"]


@pytest.mark.parametrize(
    "sign", ["*a ", "_a ", "[", "`", "**a", "> " * 50 + "\n", "- " * 50 + "\n", "| ", "~~a", "\\(a ", "$a ", "$$\n"]
)
def test_no_text_keeps_the_page_busy(modules: Browser, sign: str) -> None:
    modules.run(RENDER, [sign * (50_000 // len(sign))])  # Bounded by the time that a script gets.


@pytest.mark.parametrize(("sign", "name"), [("**", "strong"), ("*", "em"), ("__", "strong"), ("_", "em")])
def test_emphasis_may_end_with_a_formula(modules: Browser, sign: str, name: str) -> None:
    html = modules.run(RENDER, [f"{sign}Is \\(x\\){sign} and {sign}\\(y\\){sign}: so"])
    assert html.startswith(f"<p><{name}>Is <")
    assert html.count(f"</{name}>") == 2
    assert sign not in html


FORMULAS = [
    ("so \\( \\frac{a}{b} \\) is", 1, False, "\\frac{a}{b}"),
    ("so \\[ \\frac{a}{b} \\] is", 1, True, "\\frac{a}{b}"),
    ("$$\na\n- b\n= c\n$$\n\nand $x_1$, $y$", 3, True, "a\n- b\n= c"),
    ("where\n\\[\nx^2\n\\]\nis", 1, True, "x^2"),
    ("- a\n\n  \\[ x \\]\n- \\(y\\)", 2, True, "x"),
]


@pytest.mark.parametrize(("text", "number", "is_display", "source"), FORMULAS)
def test_formulas_are_drawn_and_keep_their_source(
    modules: Browser, text: str, number: int, is_display: bool, source: str
) -> None:
    modules.run(
        """
        const { MarkdownView } = await import("/chat/markdown.js");
        window.formulas = document.createElement("div");
        document.body.replaceChildren(window.formulas);
        const view = new MarkdownView(window.formulas);
        for (let end = 1; end <= arguments[0].length; end += 1) view.update(arguments[0].slice(0, end));
        view.update(arguments[0], true);
    """,
        text,
    )
    drawn = "return window.formulas.querySelectorAll('.math math').length;"
    modules.until(lambda: modules.run(drawn) == number, "KaTeX draws the formulas")
    first = modules.run("""
        const node = window.formulas.querySelector(".math");
        return [node.classList.contains("display"), node.querySelector("annotation").textContent.trim()];
    """)
    assert first == [is_display, source]
    assert modules.run("return window.formulas.querySelectorAll('[style], a, script').length;") == 0


def test_what_is_no_formula_stays_as_it_was_written(modules: Browser) -> None:
    text = "\\( \\frac{a \\) and \\(\\href{javascript:alert(1)}{x}\\)"
    modules.run(
        """
        const { MarkdownView } = await import("/chat/markdown.js");
        const { mathNode } = await import("/chat/math.js");
        window.formulas = document.createElement("div");
        document.body.replaceChildren(window.formulas);
        window.formulas.append(mathNode("x", "x"));
        new MarkdownView(window.formulas).update(arguments[0], true);
    """,
        text,
    )
    drawn = "return window.formulas.querySelectorAll('.math math').length >= 1;"
    modules.until(lambda: modules.run(drawn), "KaTeX has come")
    assert "\\( \\frac{a \\)" in modules.run("return window.formulas.textContent;")
    assert modules.run("return window.formulas.querySelectorAll('a').length;") == 0


def test_events_are_the_same_however_the_stream_is_cut(modules: Browser) -> None:
    stream = ": keep-alive\n\nid: a\r\ndata: 1\r\n\r\ndata: x\ndata: y\n\nid: b\nevent: e\n\nid\ndata:  z\r\rdata: lost"
    found = modules.run(
        """
        const { EventParser } = await import("/event_stream.js");
        const [stream] = arguments;
        const cut = (size) => {
            const parser = new EventParser();
            const events = [];
            for (let at = 0; at < stream.length; at += size) events.push(...parser.feed(stream.slice(at, at + size)));
            return events;
        };
        return [1, 2, 3, 7, 1000].map(cut);
        """,
        stream,
    )
    expected = [{"id": "a", "data": "1"}, {"id": "a", "data": "x\ny"}, {"id": "", "data": " z"}]
    assert found == [expected] * 5


def test_conversations_go_through_a_file(modules: Browser) -> None:
    found = modules.run("""
        const { addMessage, asFile, choose, conversationsOf, newConversation, shownMessages } =
            await import("/chat/conversation.js");
        const one = newConversation({ system: "s" });
        const user = addMessage(one, null, { role: "user", content: "# **Hi** there" });
        addMessage(one, user.id, { role: "assistant", content: "a" });
        addMessage(one, user.id, { role: "assistant", content: "b" });
        const [read] = conversationsOf(asFile([one]), () => ({ system: "", stop: "" }));
        const request = { messages: [{ role: "system", content: "s" }, { role: "user", content: "x" }] };
        const [saved] = conversationsOf(JSON.stringify(request), () => ({ system: "" }));
        return [
            read.id === one.id, read.title, read.settings, shownMessages(read).map(({ content }) => content),
            saved.settings.system, shownMessages(saved).map(({ content }) => content),
        ];
    """)
    settings = {"system": "s", "stop": ""}
    assert found == [True, "**Hi** there", settings, ["# **Hi** there", "b"], "s", ["x"]]


def test_a_file_brings_what_is_not_there_and_what_was_changed_under_another_id(modules: Browser) -> None:
    found = modules.run("""
        const { addMessage, asFile, conversationsOf, newConversation } = await import("/chat/conversation.js");
        const all = [0, 1, 2].map(() => newConversation({}));
        all.forEach((each) => addMessage(each, null, { role: "user", content: "Hi" }));
        const known = new Map([[all[0].id, all[0].updated], [all[1].id, all[1].updated - 1]]);
        const [changed, added, ...others] = conversationsOf(asFile(all), () => ({}), known);
        return [changed.id === all[1].id, added.id === all[2].id, others.length];
    """)
    assert found == [False, True, 0]


def test_no_more_is_taken_in_than_there_is_room_for(modules: Browser) -> None:
    found = modules.run("""
        const { newConversation } = await import("/chat/conversation.js");
        const { checkRoom, save, summaries } = await import("/chat/storage.js");
        const all = Array.from({ length: 200 }, () => newConversation({}));
        await checkRoom(all);
        for (const each of all) await save(each);
        await save({ ...newConversation({}), updated: 1 });
        const kept = (await summaries()).length;
        try { await checkRoom([newConversation({})]); } catch (error) { return [kept, error.message]; }
    """)
    assert found[0] == 200
    assert "200 conversations" in found[1]
    assert "201" in found[1]


def damaged(message: Mapping[str, object] | None = None, **fields: object) -> str:
    """A file with one conversation, which is whole without these fields of it and of its message."""
    said = {"id": "a", "parent": "root", "role": "user", "content": "Hi", **(message or {})}
    parts = {"messages": {said["id"]: said}, "children": {"root": [said["id"]]}, "chosen": {"root": said["id"]}}
    return json.dumps({"conversations": [{"id": "c", "created": 1, "updated": 1, **parts, **fields}]})


def test_a_whole_conversation_is_taken(modules: Browser) -> None:
    script = 'return (await import("/chat/conversation.js")).conversationsOf(arguments[0], () => ({})).length;'
    assert modules.run(script, damaged()) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not JSON"),
        ("null", "neither"),
        ("[]", "neither"),
        ('{"conversations": [{}]}', "its conversation 1 is damaged"),
        (
            '{"conversations": [{"created": 1, "updated": 1, "children": {}, "messages": {}, "chosen": {"a": "x"}}]}',
            "1 is",
        ),
        (damaged(message={"id": "root"}), "its conversation 1 is damaged"),
        (damaged(message={"toolCalls": "none"}), "its conversation 1 is damaged"),
        (damaged(message={"toolCalls": [{"id": "a"}]}), "its conversation 1 is damaged"),
        (damaged(id=7), "its conversation 1 is damaged"),
        ('{"messages": [{"role": "user", "content": []}]}', "no text"),
        ('{"messages": [{"role": "robot", "content": ""}]}', "robot"),
    ],
)
def test_a_file_that_has_no_conversations_is_refused(modules: Browser, text: str, reason: str) -> None:
    script = """
        const { conversationsOf } = await import("/chat/conversation.js");
        try { conversationsOf(arguments[0], () => ({})); return "taken"; } catch (error) { return error.message; }
    """
    assert reason in modules.run(script, text)


def test_an_answer_without_a_token_is_not_sent_again(modules: Browser) -> None:
    sent = modules.run("""
        const { apiMessages } = await import("/chat/conversation.js");
        const messages = [["user", "a"], ["assistant", ""], ["user", "b"]];
        return apiMessages(messages.map(([role, content]) => ({ role, content })), "");
    """)
    assert sent == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]


def test_a_search_looks_into_titles_and_messages(modules: Browser) -> None:
    found = modules.run("""
        const { addMessage, newConversation } = await import("/chat/conversation.js");
        const { remove, save, search } = await import("/chat/storage.js");
        const made = ["The sea", "A wood"].map((content) => {
            const conversation = newConversation({});
            addMessage(conversation, null, { role: "user", content });
            return conversation;
        });
        addMessage(made[1], null, { role: "user", content: "of oaks" });
        for (const conversation of made) await save(conversation);
        const results = [];
        for (const text of ["SEA", "oak", "desert"]) {
            const ids = await search(text);
            results.push(made.map(({ id }) => ids.has(id)));
        }
        for (const { id } of made) await remove(id);
        return results;
    """)
    assert found == [[True, False], [False, True], [False, False]]


def test_a_text_file_becomes_a_block_and_another_file_is_refused(modules: Browser) -> None:
    found = modules.run("""
        const { asText, textOf } = await import("/chat/attachments.js");
        const read = async (...parts) => textOf(new File(parts, "a")).catch((error) => error.message);
        const bytes = new Uint8Array([0x25, 0x50, 0xff, 0xfe]);
        return [
            asText({ name: "a.md", text: "x\\n```\\ny\\n```\\n" }), await read("grün"), await read(bytes),
            await read("a\\0b"), await read(new Uint8Array(2 ** 20 + 1)),
        ];
    """)
    assert found[:2] == ["a.md:\n````\nx\n```\ny\n```\n````", "grün"]
    assert [("no text in UTF-8" in text) for text in found[2:4]] == [True, True]
    assert "1048577 bytes" in found[4]


def test_a_break_counts_when_the_answer_goes_on(modules: Browser) -> None:
    """Fifteen tries to connect are one break; of an answer that never goes on there is none."""
    counts = modules.run("""
        const { Answer } = await import("/chat/answer.js");
        const data = (content) => JSON.stringify({ choices: [{ delta: { content } }] });
        const event = (id, content) => `id: ${id}\\ndata: ${data(content)}\\n\\n`;
        const original = window.fetch;
        const results = [];
        for (const isBack of [true, false]) {
            let calls = 0;
            const message = { content: "", request: {} };
            const answer = new Answer(message, () => {});
            window.fetch = async () => {
                calls += 1;
                if (calls === 1) return new Response(event("1", "a"));
                if (calls < 4 || !isBack) {
                    if (calls === 4) answer.stop();
                    throw new TypeError("no network");
                }
                return new Response(event("2", "b") + "data: [DONE]\\n\\n");
            };
            await answer.run();
            results.push([message.content, message.state, message.breaks || 0]);
        }
        window.fetch = original;
        return results;
    """)
    assert counts == [["ab", "done", 1], ["a", "stopped", 0]]


def test_all_of_the_page_says_the_same_of_the_server(modules: Browser) -> None:
    said = modules.run("""
        const { health, healthSignals, tellHealth } = await import("/health.js");
        const said = [];
        healthSignals.addEventListener("change", () => said.push(health()));
        tellHealth({ status: "ready" });
        tellHealth({ status: "not ready", reason: "a worker starts" });
        tellHealth(null);
        return said.map(({ state, text, reason }) => `${state} ${text} ${reason}`);
    """)
    assert said == ["ready ready ", "waiting not ready a worker starts", "down no answer "]


def test_an_edit_is_a_branch_and_each_branch_keeps_its_own(modules: Browser) -> None:
    texts = modules.run("""
        const tree = await import("/chat/conversation.js");
        const chat = tree.newConversation({});
        const first = tree.addMessage(chat, null, { role: "user", content: "one" });
        tree.addMessage(chat, first.id, { role: "assistant", content: "answer to one" });
        const edited = tree.addMessage(chat, tree.parentOf(first), { role: "user", content: "two" });
        const texts = () => tree.shownMessages(chat).map(({ content }) => content);
        const before = texts();
        tree.choose(chat, first.id);
        const kept = JSON.parse(JSON.stringify(chat));
        return [before, texts(), tree.siblings(chat, edited).length, tree.shownMessages(kept).length, chat.title];
    """)
    assert texts == [["two"], ["one", "answer to one"], 2, 2, "one"]


SETTINGS = {"system": "Be brief.", "parameters": {"temperature": 0, "top_k": 5}, "stop": "A\nB\n", "format": "text"}
SETTINGS |= {"inputs": {}, "tools": "", "toolChoice": "auto", "logprobs": False, "topLogprobs": 5}
BODY = """
    const { requestBody } = await import("/chat/request.js");
    return requestBody([{ role: "user", content: "It's \\"so\\"\\n😀" }], arguments[0], "m");
"""


def body(modules: Browser, **settings: Any) -> dict[str, Any]:
    return dict(modules.run(BODY, SETTINGS | settings))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parameters": dict.fromkeys(("top_p", "min_p", "max_tokens", "seed", "repetition_penalty"), 1)},
        {"format": "json_object"},
        {"format": "json_schema", "inputs": {"json_schema": '{\n  "type": "object"\n}'}},
        {"format": "regex", "inputs": {"regex": "a+"}},
        {"format": "choice", "inputs": {"choice": "yes\nno"}},
        {"tools": '[\n  {\n    "type": "function"\n  }\n]', "toolChoice": "required"},
        {"logprobs": True, "topLogprobs": 3},
    ],
)
def test_an_imported_request_keeps_its_settings(modules: Browser, changes: dict[str, Any]) -> None:
    settings = SETTINGS | {"stop": "A\nB"} | changes
    found = modules.run(
        """
        const { conversationsOf } = await import("/chat/conversation.js");
        const { settingsOf } = await import("/chat/request.js");
        return conversationsOf(arguments[0], settingsOf)[0].settings;
        """,
        json.dumps(body(modules, **settings)),
    )
    assert found == settings


def test_what_pyllm_chat_saved_keeps_its_parameters(modules: Browser, tmp_path: Path) -> None:
    session = ChatSession(ScriptedSource(), KeptDisplay(), "Be brief.")
    session.fields = {"temperature": 0.5, "top_k": 3, "max_tokens": 9, "seed": 7, "stop": ["A", "B"]}
    session.save(tmp_path / "saved.json")
    found = modules.run(
        """
        const { conversationsOf } = await import("/chat/conversation.js");
        const { settingsOf } = await import("/chat/request.js");
        return conversationsOf(arguments[0], settingsOf)[0].settings;
        """,
        (tmp_path / "saved.json").read_text(),
    )
    assert (found["system"], found["stop"]) == ("Be brief.", "A\nB")
    assert found["parameters"] == {"temperature": 0.5, "top_k": 3, "max_tokens": 9, "seed": 7}


def test_a_stop_string_that_the_page_cannot_show_is_said(modules: Browser) -> None:
    script = """
        const { settingsOf } = await import("/chat/request.js");
        try { settingsOf({ stop: ["a\\nb"] }); } catch (error) { return error.message; }
    """
    assert "a stop string has several lines" in modules.run(script)


def test_settings_become_the_fields_of_a_request(modules: Browser) -> None:
    plain = body(modules)
    assert plain["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": 'It\'s "so"\n😀'},
    ]
    assert (plain["temperature"], plain["top_k"], plain["stop"]) == (0, 5, ["A", "B"])
    assert set(plain) == {"model", "messages", "temperature", "top_k", "stop", "stream", "stream_options"}
    schema = body(modules, format="json_schema", inputs={"json_schema": '{"type": "object"}'})
    assert schema["response_format"]["json_schema"]["schema"] == {"type": "object"}
    choice = body(modules, format="choice", inputs={"choice": "yes\nno\n"})
    assert choice["structured_outputs"] == {"choice": ["yes", "no"]}
    tools = body(modules, tools='[{"type": "function"}]', toolChoice="required", logprobs=True)
    assert (tools["tools"], tools["tool_choice"], tools["top_logprobs"]) == ([{"type": "function"}], "required", 5)
    with pytest.raises(AssertionError, match=r'The setting "tools" is not valid JSON'):
        body(modules, tools="[")


def test_the_request_as_curl_and_python_is_the_request(modules: Browser) -> None:
    given = body(modules, format="regex", inputs={"regex": "\\d+"}, logprobs=True)
    curl, python = modules.run(
        """
        const { asCurl, asPython } = await import("/chat/request.js");
        return [asCurl(arguments[0], "U", true), asPython(arguments[0], "B", true)];
        """,
        given,
    )
    # What the shell makes of it, with another program for curl.
    shown = subprocess.run(
        ["sh", "-c", f"curl() {{ printf '%s\\0' \"$@\"; }}\n{curl}"],
        capture_output=True,
        check=True,
        env={"PYLLM_API_KEY": "k"},
    ).stdout.split(b"\0")
    assert b"Authorization: Bearer k" in shown
    assert json.loads(shown[-2]) == given
    called: dict[str, Any] = {}
    start = python.index("client.chat.completions.create(")
    call = python[start : python.index("\n)\n", start) + 2]

    class Recorder:
        chat = completions = property(lambda self: self)

        def create(self, **fields: Any) -> None:
            called.update(fields)

    exec(call, {"client": Recorder()})
    extra = called.pop("extra_body")
    assert called | extra == given | {"stream_options": {"include_usage": True}}
    compile(python, "shown.py", "exec")


METRICS = """# HELP vllm:time_to_first_token_seconds From arrival.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="a \\"b\\" {c}"} %d
vllm:time_to_first_token_seconds_bucket{le="0.2",model_name="a \\"b\\" {c}"} %d
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="a \\"b\\" {c}"} %d
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 1.5e0
vllm:generation_tokens_total{engine="0"} %d
vllm:prompt_tokens_total{engine="0"} %d
pyllm:recoveries_total{engine="0"} %d
"""
LOOKS = """
    const { EngineData, SERIES } = await import("/engine/engine_data.js");
    const { parseMetrics } = await import("/engine/prometheus.js");
    let time = 0;
    const data = new EngineData(null, () => (time += 2000));
    for (const text of arguments[0]) data.take(parseMetrics(text), { status: "ready" });
    const latest = Object.fromEntries(SERIES.map((name) => [name, data.latest(name)]));
    const labels = parseMetrics(arguments[0][0]).get("vllm:time_to_first_token_seconds_bucket")[0].labels;
    return { latest: JSON.parse(JSON.stringify(latest)), events: data.events, labels };
"""


def test_rates_and_percentiles_are_of_the_time_between_looks(modules: Browser) -> None:
    looks = [METRICS % (5, 5, 5, 100, 10, 0), METRICS % (5, 15, 15, 150, 10, 0), METRICS % (5, 15, 15, 250, 30, 2)]
    seen = modules.run(LOOKS, looks)
    assert seen["labels"]["model_name"] == 'a "b" {c}'
    latest = seen["latest"]
    assert (latest["generation"], latest["prompt"], latest["running"]) == (50, 10, 4.5)
    assert latest["firstToken50"] == pytest.approx(0.15)  # Ten came, all of them between 0.1 and 0.2 s.
    assert latest["firstToken95"] == pytest.approx(0.195)
    assert latest["interToken50"] is None
    assert [(event["text"], event["count"]) for event in seen["events"]] == [("Workers were lost and started anew", 2)]


def test_counters_that_begin_anew_are_no_negative_rate(modules: Browser) -> None:
    seen = modules.run(LOOKS, [METRICS % (5, 5, 5, 100, 10, 3), METRICS % (0, 0, 0, 0, 0, 0)])
    assert seen["latest"]["generation"] is None
    assert seen["events"] == []


def test_a_source_that_a_key_may_not_ask_is_asked_once(modules: Browser) -> None:
    asked, snapshot, refusal = modules.run("""
        const { EngineData } = await import("/engine/engine_data.js");
        const { ServerError } = await import("/server.js");
        const asked = [];
        const data = new EngineData(async (path) => {
            asked.push(path);
            if (path.startsWith("/metrics") || path.startsWith("/admin/")) throw new ServerError("not yours", 403);
            if (path === "/server_info") return { json: async () => ({ version: "1" }) };
            throw new ServerError("draining", 503, { body: { status: "not ready", reason: "draining" } });
        });
        await data.poll();
        await data.poll();
        return [asked, data.snapshot, data.refusal];
    """)
    assert sorted(path for path in asked if not path.startswith("/admin/")) == [
        *("/health/ready", "/health/ready", "/metrics", "/metrics/history", "/server_info")
    ]
    assert len(asked) == 5 + sum(path.startswith("/admin/") for path in set(asked))
    assert {name: value for name, value in snapshot.items() if value is not None} == {
        "health": {"status": "not ready", "reason": "draining"},
        "server": {"version": "1"},
    }
    assert refusal == "not yours"


def test_charts_begin_with_what_the_server_remembers(modules: Browser) -> None:
    series = {
        'vllm:generation_tokens_total{engine="0"}': [100, 150, 250, 260],
        'vllm:prompt_tokens_total{engine="0"}': [0, 0, 0, 0],
        'vllm:num_requests_running{engine="0"}': [1, None, 3, 4],
        'pyllm:recoveries_total{engine="0"}': [0, 0, 2, 2],
    }
    times, drawn, asked, events = modules.run(
        """
        const { EngineData } = await import("/engine/engine_data.js");
        const { ServerError } = await import("/server.js");
        const asked = [];
        let time = 10000;
        const data = new EngineData(async (path) => {
            asked.push(path);
            if (path === "/metrics") return { text: async () => arguments[1] };
            if (path === "/metrics/history") return { json: async () => arguments[0] };
            throw new ServerError("none", 404);
        }, () => time);
        await data.poll();
        time += 2000;
        await data.poll();
        const values = (series) => [...series.slice(0, data.length)].map((value) => Number.isNaN(value) ? null : value);
        return [
            values(data.times), [values(data.series.generation), values(data.series.running)],
            asked.filter((path) => path === "/metrics/history").length, data.events.map(({ text }) => text),
        ];
        """,
        {"ages": [6.0, 4.0, 2.0, 0.5], "series": series},
        "vllm:generation_tokens_total 270\nvllm:prompt_tokens_total 0\n",
    )
    assert times == [4000, 6000, 8000, 10000, 12000]  # The look of half a second ago is left out.
    assert drawn == [[None, 25, 50, 10, 0], [1, None, 3, None, None]]
    assert asked == 1
    assert events == ["Workers were lost and started anew"]


def test_panels_show_what_their_source_has_and_hide_without(modules: Browser) -> None:
    request = {"client": 1, "request": 2, "name": "abc", "tenant": "t", "num_prompt_tokens": 3, "num_cached_tokens": 0}
    request |= {"num_output_tokens": 4, "num_blocks": 1, "num_preemptions": 0, "age": 90, "finish": None}
    waiting = {"state": "waiting", "reason": "blocks", "hold": None}
    requests = {"data": [request | {"samples": [waiting]}, request | {"finish": "stop", "ended_age": 5, "samples": []}]}
    owners = {"tenants": {"a": 5, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}, "pinned": 2, "in_transit": 0, "free": 8}
    blocks = {
        "num_blocks": 20,
        "owners": owners,
        "cached": 4,
        "num_host_blocks": 0,
        "prefix_queries": 8,
        "prefix_hits": 2,
    }
    shown, hidden = modules.run(
        """
        const { RequestsPanel, TenantsPanel } = await import("/engine/tables.js");
        const { BlocksPanel } = await import("/engine/panels.js");
        const panels = [new RequestsPanel(), new BlocksPanel(), new TenantsPanel()];
        const texts = () => panels.map(({ root }) => root.hidden ? null
            : [...root.querySelectorAll("tr, li:not([hidden]), p")].map((each) => each.textContent));
        panels.forEach((panel) => panel.update({ snapshot: arguments[0] }));
        const shown = texts();
        panels.forEach((panel) => panel.update({ snapshot: {} }));
        return [shown, texts()];
        """,
        {"requests": requests, "blocks": blocks, "tenants": {"data": [["", 0, 0]]}},
    )
    assert shown[0][1:] == ["abctwaiting: blocks304101 min", "abctstop, 5.0 s ago304101 min"]
    assert shown[1][:-1] == ["a 5", "b 1", "c 1", "d 1", "other tenants 2", "pinned 2", "free 8"]
    assert shown[1][-1] == "The prefix cache knows 4 of 20 blocks. Of all prompt tokens it had 25 %."
    assert shown[2] is None
    assert hidden == [None] * 3


TIERS = """
vllm:cache_config_info{engine="0",num_gpu_blocks="512",num_cpu_blocks="%d"} 1
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:prefix_cache_queries_total{engine="0"} 1000
vllm:prefix_cache_hits_total{engine="0"} 600
vllm:cpu_cache_usage_perc{engine="0"} 0.25
vllm:external_prefix_cache_queries_total{engine="0"} 400
vllm:external_prefix_cache_hits_total{engine="0"} 0
pyllm:kv_cache_slot_usage_perc{engine="0",tier="device"} 1
pyllm:kv_cache_slot_usage_perc{engine="1",tier="device"} 0.5
pyllm:kv_cache_slot_usage_perc{engine="0",tier="host"} 1
pyllm:kv_cache_free_runs{engine="0",tier="device"} 3
pyllm:kv_cache_free_runs{engine="0",tier="host"} 1
"""
OF_STORES = """
pyllm:kv_store_queries_total{engine="0",tier="disk"} 10
pyllm:kv_store_queries_total{engine="1",tier="disk"} 5
pyllm:kv_store_queries_total{engine="0",tier="redis"} 7
pyllm:kv_store_hits_total{engine="0",tier="disk"} 8
pyllm:kv_store_hits_total{engine="1",tier="disk"} 1
pyllm:kv_store_hits_total{engine="0",tier="redis"} 7
pyllm:kv_store_evicted_blocks_total{engine="0",tier="disk"} 2
pyllm:kv_store_evicted_blocks_total{engine="0",tier="redis"} 0
pyllm:kv_store_loaded_bytes_total{engine="0",tier="disk"} %(loaded)d
pyllm:kv_store_loaded_bytes_total{engine="0",tier="redis"} 0
pyllm:kv_store_saved_bytes_total{engine="0",tier="disk"} 0
pyllm:kv_store_saved_bytes_total{engine="0",tier="redis"} 0
pyllm:kv_store_capacity_bytes{engine="0",tier="disk"} 17179869184
pyllm:kv_store_used_bytes{engine="0",tier="disk"} 1048576
pyllm:kv_store_used_bytes{engine="1",tier="disk"} 2097152
pyllm:kv_store_live_perc{engine="0",tier="disk"} 0.5
pyllm:kv_store_free_runs{engine="0",tier="disk"} 4
"""
DASH = "\N{EN DASH}"


def test_each_tier_of_kv_memory_is_a_row(modules: Browser) -> None:
    looks = [TIERS % 0, TIERS % 40 + OF_STORES % {"loaded": 0}, TIERS % 40 + OF_STORES % {"loaded": 8 << 20}]
    device, before, now = modules.run(
        """
        const { TiersPanel } = await import("/engine/tiers.js");
        const { parseMetrics } = await import("/engine/prometheus.js");
        const looks = arguments[0].map((text, index) => ({ time: 4000 * index, metrics: parseMetrics(text) }));
        const panel = new TiersPanel();
        return looks.map((current, index) => {
            panel.update({ oldest: looks[Math.max(1, index - 1)], current });
            const cells = (row) => [...row.children].map((cell) => cell.textContent);
            return panel.root.hidden ? null : [...panel.body.children].map(cells);
        });
        """,
        looks,
    )
    assert device is None
    of_engine = [
        ["device", "512 blocks", "50 %", "75 %", "3", "600 tokens", "400 tokens", DASH, DASH, DASH],
        ["host", "40 blocks", "25 %", "100 %", "1", "0 tokens", "400 tokens", DASH, DASH, DASH],
    ]
    disk = ["disk", "16.00 GiB", "2 MiB", "50 %", "4", "9 blocks", "6 blocks", "2 blocks"]
    redis = ["redis", DASH, DASH, DASH, DASH, "7 blocks", "0 blocks", "0 blocks"]
    assert before == [*of_engine, [*disk, DASH, DASH], [*redis, DASH, DASH]]
    assert now == [*of_engine, [*disk, "2 MiB/s", "0 MiB/s"], [*redis, "0 MiB/s", "0 MiB/s"]]
