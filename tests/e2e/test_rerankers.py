"""A reranker behind a real server: BERT, whose tokenizer is made of its vocabulary."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pyllm.frontend.scoring.scores import class_scores
from tests.e2e.server import Server
from tests.e2e.test_encoders import ids, write_vocabulary

pytestmark = pytest.mark.torch
QUERY, DOCUMENTS = "a cat sat", ["no rates rose again", "a cat sat", "x", "the cat"]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from tests.families.tiny_classifiers import write_tiny_classifier

    folder = Path(write_tiny_classifier(tmp_path_factory.mktemp("models") / "bert", "bert-classifier"))
    write_vocabulary(folder)
    with Server("--model", str(folder), "--dtype", "float32", "--served-model-name", "reranker") as server:
        yield server


def asked(server: Server, route: str, **body: Any) -> Any:
    answer = httpx.post(f"{server.address}{route}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def wanted(document: str) -> float:
    from tests.families.tiny_classifiers import expected

    first, second = ids(QUERY), ids(document)[1:]
    types = [0] * len(first) + [1] * len(second)
    return class_scores(expected("bert-classifier", first + second, types).tolist(), "sigmoid")[0]


def test_documents_are_ordered_as_transformers_scores_them(reranker: Server) -> None:
    scores = [wanted(document) for document in DOCUMENTS]
    answer = asked(reranker, "/rerank", model="reranker", query=QUERY, documents=DOCUMENTS, top_n=3)
    best = sorted(range(4), key=lambda index: -scores[index])[:3]
    assert [result["index"] for result in answer["results"]] == best
    found = [result["relevance_score"] for result in answer["results"]]
    np.testing.assert_allclose(found, [scores[index] for index in best], atol=1e-5)
    alone = asked(reranker, "/v1/score", text_1=QUERY, text_2=DOCUMENTS[best[0]])
    assert alone["data"][0]["score"] == found[0]


def test_it_only_scores(reranker: Server) -> None:
    assert httpx.get(f"{reranker.address}/health_generate").status_code == 200
    for route, body in (("completions", {"prompt": "a"}), ("embeddings", {"input": "a"})):
        answer = httpx.post(f"{reranker.address}/v1/{route}", json=body)
        assert answer.status_code == 400
        assert "/rerank" in answer.json()["error"]["message"]
    assert httpx.post(f"{reranker.address}/api/show", json={"model": "reranker"}).json()["capabilities"] == []
