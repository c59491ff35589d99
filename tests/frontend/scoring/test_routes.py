"""`/v1/rerank`, `/v1/score` and `/classify` over a scripted core, which gives four numbers for each prompt."""

from typing import Any

import msgspec
import pytest

from pyllm.frontend.openai.embedding_protocol import MAX_INPUTS
from pyllm.frontend.scoring.scores import class_scores
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL, ScriptedCore, embedded
from tests.frontend.serving import Frontend, in_process

RERANKER = {"labels": ("relevance",), "relevant_class": 0, "class_activation": "identity", "can_generate": False}
CLASSIFIER = {"labels": ("a", "b", "c", "d"), "class_activation": "softmax", "can_generate": False}
DOCUMENTS = ["x", "Hello there, you", "Hello"]


def core(**model: Any) -> ScriptedCore:
    return ScriptedCore(lambda prompt, sample: [7], msgspec.structs.replace(MODEL, **model))


async def ask(frontend: Frontend, route: str, **body: Any) -> dict[str, Any]:
    response = await frontend.http.post(route, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def pair_lengths(tokenizer: Tokenizer, query: str = "Hello") -> list[int]:
    return [len(tokenizer.encode(query) + tokenizer.encode(document)) for document in DOCUMENTS]


@pytest.mark.parametrize("route", ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"])
async def test_documents_are_ordered_by_their_scores(route: str, tokenizer: Tokenizer) -> None:
    lengths = pair_lengths(tokenizer)  # The core's first number is the length of the prompt.
    async with in_process(core(**RERANKER), tokenizer) as frontend:
        answer = await ask(frontend, route, model="tiny", query="Hello", documents=DOCUMENTS, user="someone")
        assert len(frontend.core.sent(Submit)) == 3
        assert frontend.state.metrics.finished["stop"] == 3
    assert answer.pop("id").startswith("rerank-")
    order = sorted(range(3), key=lambda index: -lengths[index])
    assert order[0] == 1
    assert answer == {
        "model": "tiny",
        "usage": {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)},
        "results": [
            {"index": index, "relevance_score": lengths[index], "document": {"text": DOCUMENTS[index]}}
            for index in order
        ],
    }


async def test_an_answer_has_as_many_documents_as_are_wanted(tokenizer: Tokenizer) -> None:
    documents = [{"text": text} for text in DOCUMENTS]
    async with in_process(core(**RERANKER), tokenizer) as frontend:
        for top_n, count in ((1, 1), (2, 2), (9, 3), (0, 3), (None, 3)):
            body = {"query": "Hello", "documents": documents, "top_n": top_n, "return_documents": False}
            results = (await ask(frontend, "/v1/rerank", **body))["results"]
            assert len(results) == count
            assert results[0].keys() == {"index", "relevance_score"}
            assert results[0]["index"] == 1


async def test_pairs_are_scored_in_their_order(tokenizer: Tokenizer) -> None:
    lengths = pair_lengths(tokenizer)
    model = RERANKER | {"class_activation": "sigmoid"}
    async with in_process(core(**model), tokenizer) as frontend:
        bodies = (
            {"text_1": "Hello", "text_2": DOCUMENTS},
            {"queries": ["Hello"], "documents": DOCUMENTS},
            {"data_1": ["Hello"] * 3, "data_2": DOCUMENTS},
            {"queries": "Hello", "items": DOCUMENTS},
        )
        answers = [await ask(frontend, "/v1/score", **body) for body in bodies]
        raw = await ask(frontend, "/score", text_1="Hello", text_2=DOCUMENTS[0], use_activation=False)
    wanted = [class_scores([float(length)], "sigmoid")[0] for length in lengths]
    for answer in answers:
        assert [each["score"] for each in answer["data"]] == wanted
        assert [each["index"] for each in answer["data"]] == [0, 1, 2]
        assert (answer["object"], answer["data"][0]["object"]) == ("list", "score")
    assert raw["data"][0]["score"] == lengths[0]


async def test_one_class_of_several_says_what_is_relevant(tokenizer: Tokenizer) -> None:
    async with in_process(core(**CLASSIFIER | {"relevant_class": 3}), tokenizer) as frontend:
        bodies = ({"use_activation": active} for active in (True, False))
        answers = [await ask(frontend, "/v1/score", text_1="Hello", text_2="x", **body) for body in bodies]
    numbers = embedded([*tokenizer.encode("Hello"), *tokenizer.encode("x")])
    wanted = [class_scores(numbers, "softmax")[3], numbers[3]]
    assert [answer["data"][0]["score"] for answer in answers] == pytest.approx(wanted, rel=1e-5)


async def test_embeddings_are_compared_where_the_model_has_no_classes(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        answer = await ask(frontend, "/v1/rerank", query="Hello", documents=DOCUMENTS)
        assert len(frontend.core.sent(Submit)) == 3  # The query is one of the documents, too.
    own, *others = (embedded(tokenizer.encode(text)) for text in ("Hello", *DOCUMENTS))
    wanted = [sum(one * other for one, other in zip(own, vector, strict=True)) for vector in others]
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert found == pytest.approx(dict(enumerate(wanted)))
    assert [each["relevance_score"] for each in answer["results"]] == sorted(found.values(), reverse=True)


async def test_classes_have_names_and_scores(tokenizer: Tokenizer) -> None:
    async with in_process(core(**CLASSIFIER), tokenizer) as frontend:
        answer = await ask(frontend, "/classify", input=[[5, 6], [7]])
        raw = await ask(frontend, "/classify", input=[5, 6], use_activation=False)
        cut = await ask(frontend, "/classify", input="Hello there" * 99, truncate_prompt_tokens=4)
    assert answer.pop("id").startswith("classify-")
    assert isinstance(answer.pop("created"), int)
    first, second = (class_scores(embedded(prompt), "softmax") for prompt in ([5, 6], [7]))
    shown = [
        {"index": 0, "label": "c", "probs": pytest.approx(first), "num_classes": 4},
        {"index": 1, "label": "b", "probs": pytest.approx(second), "num_classes": 4},
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    assert answer == {"object": "list", "model": "tiny", "data": shown, "usage": usage}
    assert raw["data"][0]["probs"] == pytest.approx([2, 5, 6, 1 / 3])
    assert cut["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(
    ("model", "route", "body", "field", "text"),
    [
        (RERANKER, "/v1/rerank", {"query": "x", "documents": []}, "documents", "got 1 and 0"),
        (RERANKER, "/v1/rerank", {"query": "x"}, None, "documents"),
        (RERANKER, "/v1/rerank", {"query": "x", "documents": ["x"], "top_n": -1}, "top_n", "at least 0"),
        (RERANKER, "/v1/rerank", {"query": "x", "documents": ["x"] * (MAX_INPUTS + 1)}, "documents", "at most 2048"),
        (
            RERANKER,
            "/v1/rerank",
            {"query": "x", "documents": ["y" * 9999]},
            "documents",
            "context length is 256",
        ),
        (RERANKER, "/v1/rerank", {"query": "x", "documents": ["x"], "rank_fields": ["a"]}, "rank_fields", "not"),
        (RERANKER, "/v1/score", {"text_1": "x"}, "text_2", "got 0 of them"),
        (RERANKER, "/v1/score", {"text_1": "x", "queries": "x", "text_2": "x"}, "text_1", "got 2 of them"),
        (RERANKER, "/v1/score", {"text_1": ["x", "y"], "items": ["x"]}, "items", "got 2 and 1"),
        (RERANKER, "/v1/score", {"queries": [], "items": ["x"]}, "queries", "got 0 and 1"),
        (RERANKER, "/v1/score", {"queries": "y" * 9999, "items": ["x"]}, "queries", "context length is 256"),
        ({}, "/v1/rerank", {"query": "y" * 9999, "documents": ["x"]}, "query", "context length is 256"),
        ({}, "/v1/rerank", {"query": "x", "documents": ["x", "y" * 9999]}, "documents", "documents[1]: "),
        (RERANKER, "/v1/embeddings", {"input": "x"}, "model", "gives no embeddings"),
        (RERANKER, "/v1/completions", {"prompt": "x"}, "model", "only classifies"),
        (CLASSIFIER, "/v1/rerank", {"query": "x", "documents": ["x"]}, "model", "has 4 classes"),
        ({"is_for_embeddings": False}, "/v1/rerank", {"query": "x", "documents": ["x"]}, "model", "generates text"),
        ({}, "/classify", {"input": "x"}, "model", "has no classes"),
        (CLASSIFIER, "/classify", {}, "input", "input is missing"),
        (CLASSIFIER, "/classify", {"messages": [{"role": "user", "content": "x"}]}, "messages", "input, a text"),
    ],
)
async def test_other_requests_are_refused(
    model: dict[str, Any], route: str, body: dict[str, Any], field: str | None, text: str, tokenizer: Tokenizer
) -> None:
    async with in_process(core(**model), tokenizer) as frontend:
        response = await frontend.http.post(route, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert text in error["message"]
    assert error["param"] == field
