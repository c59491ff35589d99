"""The requests and answers of `/v1/rerank`, `/v1/score` and `/classify` as structs. Knows no behaviour."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from pyllm.frontend.http.ignored_fields import Hint
from pyllm.frontend.http.unsupported import Unsupported, unsupported_field
from pyllm.frontend.openai.embedding_protocol import EmbeddingUsage
from pyllm.parameters.arguments import declared
from pyllm.parameters.sampling_params import TruncatePromptTokens
from pyllm.parameters.scheduling_params import Priority, Timeout

TopN = Annotated[int, declared("Answer with so many documents, the best; 0 for all.", ge=0)]


class ScoringRequest(Struct, kw_only=True):
    """The fields that all routes share. With `use_activation` false scores are a classifier's logits."""

    model: str | None = None
    truncate_prompt_tokens: TruncatePromptTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Priority | None = None
    timeout: Timeout | None = None
    use_activation: bool | None = True

    user: str | None = None  # Names the tenant where nothing else does.

    activation: Annotated[bool | None, unsupported_field("use_activation")] = True
    request_id: Hint = None
    cache_salt: Unsupported[str] = None
    mm_processor_kwargs: Unsupported[dict[str, Any]] = {}


class Document(Struct):
    """A document of a rerank request and of its answer."""

    text: str


class RerankRequest(ScoringRequest, kw_only=True):
    """`POST /v1/rerank`: which of the documents answer the query best."""

    query: str
    documents: list[str | Document]
    top_n: TopN | None = None
    return_documents: bool | None = True

    rank_fields: Unsupported[list[str]] = None
    max_tokens_per_doc: Annotated[int | None, unsupported_field("truncate_prompt_tokens")] = None
    max_chunks_per_doc: Annotated[int | None, unsupported_field("truncate_prompt_tokens")] = None


class RerankResult(Struct, omit_defaults=True):
    """A document's index in the request, and its score; with its text unless the request says otherwise."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankAnswer(Struct):
    """The answer, the best document first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RerankResult]


Texts = str | list[str]
FIRST_TEXTS = ("text_1", "data_1", "queries")
SECOND_TEXTS = ("text_2", "data_2", "documents", "items")
"""The names of the two fields of `ScoreRequest`."""


class ScoreRequest(ScoringRequest, kw_only=True):
    """`POST /v1/score`: how well a text goes with each of some, or texts with as many others.

    The fields have several names, of which one is given each.
    """

    text_1: Texts | None = None
    data_1: Texts | None = None
    queries: Texts | None = None
    text_2: Texts | None = None
    data_2: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None


class Score(Struct):
    """The score of one pair."""

    index: int
    score: float
    object: str = "score"


class ScoreAnswer(Struct):
    """The scores, in the order of the pairs."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage
    object: str = "list"


class ClassifyRequest(ScoringRequest, kw_only=True):
    """`POST /classify`. `input` is a text or token ids, or a list of either."""

    input: str | list[str | int | list[int]] | None = None
    add_special_tokens: bool | None = True

    messages: Annotated[list[Any] | None, unsupported_field("input, a text as the chat template would write it")] = None


class Classification(Struct):
    """The class with the highest score, and the scores of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(Struct):
    """The classes of each input, in their order."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: EmbeddingUsage
    object: str = "list"
