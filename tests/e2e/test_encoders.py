"""An encoder behind a real server, for the programs that search texts with it."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.server import Server, until
from tests.e2e.titles import WORKER

pytestmark = pytest.mark.torch
CLS, SEP = 2, 3
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TEXTS = ["a cat sat", "A CAT SAT", "ábc", "x", "no rates rose again, " * 3]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from tests.families.tiny_encoders import write_tiny_encoder

    folder = Path(write_tiny_encoder(tmp_path_factory.mktemp("models") / "bert", "bert", "cls"))
    write_vocabulary(folder)
    with Server("--model", str(folder), "--dtype", "float32", "--served-model-name", "bert") as server:
        yield server


def write_vocabulary(folder: Path) -> None:
    """Put BERT's vocab.txt, of letters, in the place of a folder's tokenizer."""
    for file in folder.glob("tokenizer*.json"):
        file.unlink()
    words = VOCABULARY + [f"[unused{number}]" for number in range(264 - len(VOCABULARY))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))


def ids(text: str) -> list[int]:
    """The pieces of a text of plain words: letters."""
    plain = text.lower().replace("á", "a").replace(",", " , ")
    found = [
        1 if word == "," else VOCABULARY.index(f"##{letter}" if index else letter)
        for word in plain.split()
        for index, letter in enumerate(word)
    ]
    return [CLS, *found, SEP]


def embed(server: Server, texts: list[str]) -> np.ndarray:
    answer = httpx.post(f"{server.address}/api/embed", json={"model": "bert", "input": texts}, timeout=60)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["embeddings"])


def test_openais_client_and_ollamas_route_embed_texts(encoder: Server) -> None:
    from tests.families.tiny_encoders import expected

    wanted = np.array([expected("bert", ids(text), "cls") for text in TEXTS])
    with openai.OpenAI(base_url=f"{encoder.address}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="bert", input=TEXTS)
    assert answer.usage.prompt_tokens == sum(len(ids(text)) for text in TEXTS)
    np.testing.assert_allclose([each.embedding for each in answer.data], wanted, atol=1e-5)
    np.testing.assert_allclose(embed(encoder, TEXTS), wanted, atol=1e-5)


def test_a_text_that_is_too_long_is_refused_or_loses_its_end_but_not_the_token_there(encoder: Server) -> None:
    from tests.families.tiny_encoders import CONTEXT, expected

    long = "a" * 90 + " " + "b" * 90
    refused = httpx.post(f"{encoder.address}/v1/embeddings", json={"model": "bert", "input": long})
    assert refused.status_code == 400
    assert str(CONTEXT) in refused.json()["error"]["message"]
    (embedded,) = embed(encoder, [long])
    kept = [*ids(long)[: CONTEXT - 1], SEP]
    np.testing.assert_allclose(embedded, expected("bert", kept, "cls"), atol=1e-5)


def test_it_generates_nothing(encoder: Server) -> None:
    assert httpx.get(f"{encoder.address}/health_generate").status_code == 200
    assert not httpx.get(f"{encoder.address}/model_info").json()["is_generation"]
    body = {"model": "bert", "messages": [{"role": "user", "content": "a"}]}
    for route, asked in (("chat/completions", body), ("completions", {"model": "bert", "prompt": "a"})):
        answer = httpx.post(f"{encoder.address}/v1/{route}", json=asked)
        assert answer.status_code == 400
        assert "bert only embeds: use /v1/embeddings" in answer.json()["error"]["message"]
    shown = httpx.post(f"{encoder.address}/api/show", json={"model": "bert"})
    assert shown.json()["capabilities"] == ["embedding"]


def test_texts_are_embedded_though_the_worker_is_killed(encoder: Server) -> None:
    texts = [TEXTS[index % len(TEXTS)] for index in range(2000)]

    once = embed(encoder, texts)
    worker = encoder.titled(WORKER)
    before = worker.cpu_times().user
    with ThreadPoolExecutor() as pool:
        again = pool.submit(embed, encoder, texts)
        until(lambda: worker.cpu_times().user > before + 0.05, "texts that are computed")
        worker.send_signal(signal.SIGKILL)
        np.testing.assert_array_equal(again.result(), once)
    assert encoder.titled(WORKER).pid != worker.pid
