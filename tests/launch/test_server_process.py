"""The line that a server prints once it is ready: a request that its model can answer."""

import socket

import pytest

from pyllm.checkpoint.pooling.embedding_config import EmbeddingSpec
from pyllm.config.server_settings import ServerConfig
from pyllm.launch.server_process import announcement_of


@pytest.mark.parametrize(
    ("embedding", "wanted"),
    [
        (None, "/v1/completions"),
        (EmbeddingSpec(), "/v1/completions"),
        (EmbeddingSpec(is_only_use=True), "/v1/embeddings"),
        (EmbeddingSpec(is_only_use=True, labels=("a", "b")), "/classify"),
        (EmbeddingSpec(is_only_use=True, labels=("no", "yes"), relevant_class=1), "/v1/rerank"),
    ],
)
def test_the_request_to_try_is_one_that_the_model_can_answer(embedding: EmbeddingSpec | None, wanted: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, line = announcement_of(
            listener, ServerConfig(), "model", has_keys=False, can_chat=False, embedding=embedding
        )
        port = listener.getsockname()[1]
    assert f"curl http://127.0.0.1:{port}{wanted} " in line
