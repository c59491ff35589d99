"""A beam search gives what asking for each beam's next tokens one by one gives, also where its beams have no room."""

from collections.abc import Iterator

import msgspec
import pytest

from pyllm import LLM, BeamSearchParams, BeamSearchSequence, SamplingParams
from tests.in_process import KV_CACHE

PROMPTS = ["Once upon a time", "The capital of France is", "def add(a, b):"]
WIDTH = 3
TOKENS = 8

Tokens = list[int]
Beam = tuple[Tokens, float]  # with the prompt's tokens, and the log-probability of the others


def naive(llm: LLM, prompt: Tokens, length_penalty: float) -> list[Beam]:
    """A search that keeps everything it completes, over requests for one token each."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=2 * WIDTH, ignore_eos=True)
    live: list[Beam] = [(prompt, 0.0)]
    for _ in range(TOKENS):
        going_on: list[Beam] = []
        for (tokens, cumulative), output in zip(live, llm.generate([beam[0] for beam in live], params), strict=True):
            (entries,) = output.outputs[0].logprobs or []
            going_on += [([*tokens, token], cumulative + entry.logprob) for token, entry in entries.items()]
        live = sorted(going_on, key=lambda beam: beam[1], reverse=True)[:WIDTH]
    return sorted(live, key=lambda beam: beam[1] / len(beam[0]) ** length_penalty, reverse=True)


def beams(sequences: list[BeamSearchSequence]) -> list[Tokens]:
    return [sequence.tokens for sequence in sequences]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", kv_cache_memory_bytes=KV_CACHE) as llm:
        yield llm


@pytest.mark.parametrize("length_penalty", [1.0, 0.0])
def test_a_search_finds_what_its_rounds_one_by_one_find(llm: LLM, length_penalty: float) -> None:
    params = BeamSearchParams(WIDTH, TOKENS, ignore_eos=True, length_penalty=length_penalty)
    for prompt, output in zip(PROMPTS, llm.beam_search(PROMPTS, params), strict=True):
        expected = naive(llm, llm.tokenizer.encode(prompt), length_penalty)
        assert beams(output.sequences) == [tokens for tokens, _ in expected]
        cumulative = [sequence.cum_logprob for sequence in output.sequences]
        assert cumulative == pytest.approx([logprob for _, logprob in expected], abs=1e-4)
        assert all(sequence.finish_reason == "length" for sequence in output.sequences)
        assert all(prompt in sequence.text for sequence in output.sequences)


def test_the_text_has_special_tokens_where_they_are_asked_for(llm: LLM) -> None:
    special = llm.tokenizer.encode("<|im_end|>")
    assert len(special) == 1
    prompt, params = [*special, *llm.tokenizer.encode("Hi")], BeamSearchParams(2, 2, ignore_eos=True)
    (plain,) = llm.beam_search([prompt], params)
    (whole,) = llm.beam_search([prompt], msgspec.structs.replace(params, skip_special_tokens=False))
    assert not plain.sequences[0].text.startswith("<|im_end|>")
    assert whole.sequences[0].text.startswith("<|im_end|>")


def test_beams_without_room_for_all_find_the_same(llm: LLM) -> None:
    params = BeamSearchParams(WIDTH, TOKENS)
    with LLM(dtype="float32", kv_cache_memory_bytes=KV_CACHE, max_num_seqs=WIDTH, max_num_batched_tokens=8) as tight:
        assert tight.beam_search(PROMPTS, params) == llm.beam_search(PROMPTS, params)
        stats = tight.stats()
    assert stats["num_preemptions"] > 0
    assert (stats["num_requests"], stats["num_used_blocks"]) == (0, 0)
