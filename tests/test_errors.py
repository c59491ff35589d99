import pytest

from pyllm.errors import Field, RequestError

NAMES = {"max_tokens": "max_output_tokens", "structured_outputs": "text.format", "prompt": "messages", "n": "n_cmpl"}


@pytest.mark.parametrize(
    ("message", "parameter", "text", "named"),
    [
        ("max_tokens must be 1", "max_tokens", "max_output_tokens must be 1", "max_output_tokens"),
        ("the n of max_tokens", None, "the n of max_tokens", None),
        ("n must be 1", "n", "n_cmpl must be 1", "n_cmpl"),
        ("no n", "n", "no n", "n_cmpl"),
        ("prompt_logprobs: no", "prompt_logprobs", "prompt_logprobs: no", "prompt_logprobs"),
        ("prompts are many", "prompt", "prompts are many", "messages"),
        ("structured_outputs.json: no", "structured_outputs", "text.format.json: no", "text.format"),
        ("structured_outputs: no", "structured_outputs.json", "text.format: no", "text.format.json"),
        (("at most ", Field("max_tokens"), ", max_tokens"), "x", "at most max_output_tokens, max_tokens", "x"),
    ],
)
def test_fields_get_the_names_that_the_caller_has_for_them(
    message: str | tuple[str, ...], parameter: str | None, text: str, named: str | None
) -> None:
    error = RequestError(message, parameter)
    assert str(error) == "".join(message)
    for _ in range(2):
        error.name_fields(NAMES)
        assert (str(error), error.parameter) == (text, named)


def test_an_error_about_one_of_several_prompts_has_its_index_and_the_callers_name() -> None:
    with pytest.raises(RequestError) as refused, RequestError.of_item(1, 2):
        raise RequestError("the prompt is empty", "prompt")
    assert str(refused.value) == "prompt[1]: the prompt is empty"
    refused.value.name_fields(NAMES)
    assert str(refused.value) == "messages[1]: the prompt is empty"
