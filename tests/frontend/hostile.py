"""What a server should get from nobody, made by hypothesis: bodies, and bytes that are hardly HTTP. Knows no server.

Bodies are mutated JSON, and mutated bytes of it; what follows the head may come in pieces, twice, or not at all.
"""

import itertools
import json
import socket
import time
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from pyllm.frontend.openai.protocol import ChatRequest, CompletionRequest

PATIENCE = 60.0  # seconds; bounds a server that hangs

_MESSAGES = [{"role": "user", "content": "Hi"}]
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
# Small answers, so that a case costs what it breaks. Routes that a server does not have answer 404.
VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2, "stream": True},
    "/v1/chat/completions": {"messages": _MESSAGES, "max_tokens": 2, "stream": False},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": _MESSAGES, "max_tokens": 2, "model": ""},
    "/v1/messages/count_tokens": {"messages": _MESSAGES, "model": ""},
    "/v1/embeddings": {"input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
}
_EXTRA: dict[str, list[str]] = {
    "/v1/completions": [field.encode_name for field in msgspec.structs.fields(CompletionRequest)],
    "/v1/chat/completions": [field.encode_name for field in msgspec.structs.fields(ChatRequest)],
}
_FIELDS = ["tools", "tool_choice", "stream", "input", "messages", "content", "role", "metadata", "model", "", "\0", "é"]

# JSON texts rather than values, since some of them are no JSON, and some no Python value would give.
FRAGMENTS = st.one_of(
    st.sampled_from(
        [
            *("null", "true", "false", "0", "-1", "1", "2", "1.5", "-0.0", "1e308", "1e400", "-1e400", "1" + "0" * 400),
            *("NaN", "Infinity", "-Infinity", "9223372036854775808", "-9223372036854775809", "18446744073709551616"),
            *('""', '"a"', '"\\ud83d"', '"\\udc00\\ud800"', '"\\u0000"', '"\\uffff"', '"<|im_end|>"', '"🙂"', "'a'"),
            *("[]", "{}", "[[]]", "[{}]", "[null]", "[1,2]", '["a",1]', '{"":null}', '{"a":1,"a":2}', "[1,]", "{,}"),
            *("[" * 5000 + "]" * 5000, '{"a":' * 3000 + "1" + "}" * 3000, "[" * 100_000, '"' + "x" * 100_000 + '"'),
            *(
                "[" + "1," * 20_000 + "1]",
                "[" + '"a",' * 3000 + '"a"]',
                "[-1]",
                "[2147483648]",
                "[1e99]",
                "[" + "[1]," * 999 + "[1]]",
            ),
            *(
                json.dumps(_MESSAGES),
                json.dumps([_TOOL]),
                '{"type":"json_schema","json_schema":{"name":"x","schema":{"type":7}}}',
            ),
            *('{"json":"{"}', '{"regex":"(((((a+)+)+)+)+)+$"}', '{"choice":[]}', '{"grammar":"root ::= root"}'),
        ]
    ),
    st.integers().map(str),
    st.floats().map(json.dumps),
    st.text(max_size=20).map(json.dumps),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=10,
    ).map(json.dumps),
)

_HEADERS = st.lists(
    st.sampled_from(
        [
            *(
                b"content-type: text/plain",
                b"content-type: application/json; charset=\xff",
                b"content-type:",
                b"a: b\r\n c",
            ),
            *(
                b"x-request-id: \x00",
                b"x-request-id: " + b"x" * 5000,
                b"x-request-timeout: nan",
                b"x-request-timeout: -1",
            ),
            *(
                b"authorization: Bearer",
                b"authorization: Bearer \xff\xfe",
                b"x-api-key: ",
                b"idempotency-key: " + b"k" * 999,
            ),
            *(
                b"last-event-id: x.y.z",
                b"last-event-id: \xff",
                b"traceparent: 00-0-0-0",
                b"origin: null",
                b"cookie: " + b"c" * 9000,
            ),
            *(
                b"accept: text/event-stream",
                b"accept-encoding: gzip;q=x",
                b"content-encoding: gzip",
                b"expect: 100-continue",
            ),
            *(
                b"x-llm-d-inference-fairness-id: \x7f",
                b"range: bytes=9-1",
                b"connection: upgrade\r\nupgrade: websocket",
            ),
        ]
    ),
    max_size=3,
)


class Case(NamedTuple):
    """Bytes to send one after another; an answer must come where `answered`."""

    pieces: list[bytes]
    answered: bool


@st.composite
def mutated_json(draw: st.DrawFn) -> Case:
    """A valid request with some fields replaced, added, left out or said twice."""
    path = draw(st.sampled_from(list(VALID)))
    fields = [(name, json.dumps(value)) for name, value in VALID[path].items()]
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*VALID[path], *_EXTRA.get(path, _FIELDS), *_FIELDS]))
        kept = fields if draw(st.booleans()) else [field for field in fields if field[0] != name]
        fields = kept if draw(st.integers(0, 9)) == 0 else [*kept, (name, draw(FRAGMENTS))]
    body = "{" + ",".join(f"{json.dumps(name)}:{fragment}" for name, fragment in fields) + "}"
    return Case([_request(path, body.encode(), draw(_HEADERS))], True)


@st.composite
def mutated_bytes(draw: st.DrawFn) -> Case:
    """A valid body of which some bytes are others, missing or new."""
    path = draw(st.sampled_from(list(VALID)))
    body = _mutated(draw, json.dumps(VALID[path]).encode())
    return Case([_request(path, body, draw(_HEADERS))], True)


@st.composite
def broken_http(draw: st.DrawFn) -> Case:
    """Requests with a broken head, a broken length or broken chunks; in pieces, pipelined, or never finished."""
    path = draw(st.sampled_from([*VALID, "/", "/health", "//", "/../../etc/passwd", "/%00", "*", "/" + "a" * 70_000]))
    body = json.dumps(VALID.get(path, {})).encode()
    head = draw(
        st.sampled_from(
            [
                b"content-length: -1",
                b"content-length: 99999999999999999999",
                b"content-length: 20000000",
                b"content-length: 5\r\ncontent-length: 6",
                b"content-length: 1e3",
                b"content-length: 4\r\ntransfer-encoding: chunked",
                b"transfer-encoding: chunked",
                b"transfer-encoding: identity, chunked, x",
                b"x: " + b"y" * 200_000,
                b"\r\n".join(b"h%d: v" % number for number in range(3000)),
                b": no name",
                b"no colon",
                b"x: a\rb: c",
                b"x\x00y: z",
            ]
        )
    )
    chunks = draw(
        st.sampled_from(
            [b"", body, b"zz\r\n" + body, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), b"-1\r\n\r\n", b"5\r\nab"]
        )
    )
    whole = b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n%b" % (path.encode(), head, chunks)
    if draw(st.booleans()):
        whole = _mutated(draw, whole[:3000]) + whole[3000:]
    whole *= draw(st.integers(1, 3))
    whole = (
        draw(st.sampled_from([b"", b"", b"\x16\x03\x01\x02", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n"])) + whole
    )
    cuts = sorted({0, len(whole), *draw(st.lists(st.integers(0, len(whole)), max_size=3))})
    pieces = [whole[start:end] for start, end in itertools.pairwise(cuts)]
    return Case(pieces[: draw(st.integers(1, 4))], False)


CASES = st.one_of(mutated_json(), mutated_json(), mutated_bytes(), broken_http())


def exchange(address: tuple[str, int], case: Case, limit: float = PATIENCE) -> bytes:
    """Send a case; gives what came back until the server ended the connection, or `limit` seconds were over."""
    answer = bytearray()
    end = time.monotonic() + limit
    with socket.create_connection(address, timeout=limit) as connection:
        try:
            for piece in case.pieces:
                connection.sendall(piece)
            if not case.answered:
                connection.shutdown(socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                connection.settimeout(left)
                data = connection.recv(1 << 16)
                if not data:
                    break
                answer += data
        except OSError:
            pass  # It is the server's good right to hang up, except where an answer is due.
    return bytes(answer)


def begin(address: tuple[str, int], case: Case) -> socket.socket:
    """Send a case, and leave its connection open; nobody reads the answer."""
    connection = socket.create_connection(address, timeout=PATIENCE)
    try:
        for piece in case.pieces:
            connection.sendall(piece)
    except OSError:
        pass
    return connection


def check(case: Case, answer: bytes) -> int:
    """The status of an answer, 0 where there is none; fails where it is no answer to give."""
    assert b"Traceback" not in answer, answer
    assert b'.py"' not in answer, answer
    if not case.answered:
        status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0
    else:
        assert answer.startswith(b"HTTP/1.1 "), answer[:100]
        status = int(answer.split(b" ", 2)[1])
    assert status < 500, (case, answer[:2000])
    return status


def _request(path: str, body: bytes, headers: list[bytes]) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode(), b"host: x", b"connection: close", *headers]
    if not any(header.startswith(b"content-type") for header in headers):
        lines.append(b"content-type: application/json")
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        end = draw(st.integers(place, min(place + 9, len(data))))
        data = data[:place] + draw(st.binary(max_size=6)) + data[end:]
    return data
