"""`POST /infill`: fills the gap between two texts, with the special tokens of the model's family.

`GET /lora-adapters` lists the adapters.
"""

from pyllm.frontend.answers.answer import respond
from pyllm.frontend.chat.conversation import Prepared
from pyllm.frontend.http.asgi import ASGIApp
from pyllm.frontend.http.routing import JSONBody, Request, ResponseSpec, Route, get, post
from pyllm.frontend.llama_cpp.answer_format import InfillFormat
from pyllm.frontend.llama_cpp.line_limits import LineLimits
from pyllm.frontend.llama_cpp.protocol import Infill, InfillRequest, InfillSettings, LoraAdapter
from pyllm.frontend.openai.error_format import ERROR_RESPONSES, LOOKUP_ERROR_RESPONSES
from pyllm.frontend.openai.parameters import output_limit, own_constraint, sample_params, scheduling_params
from pyllm.frontend.openai.request_start import begin_request
from pyllm.frontend.requests.server_state import ServerState
from pyllm.frontend.requests.serving import generate, resolve_plain
from pyllm.frontend.text.fill_in_the_middle import add_middle_stops, files_prompt, middle_prompt
from pyllm.parameters.arguments import check
from pyllm.parameters.sampling_params import SamplingParams

# Output tokens that files leave room for where the request's limit is absent or 0; editors ask for as many.
LEAST_OUTPUT = 128
MAX_RESPONSE_FIELDS = 64


def adapters_route(state: ServerState) -> Route:
    """The route, for one server."""

    @get("/lora-adapters", summary="The LoRA adapters, in llama.cpp's shape", responses=LOOKUP_ERROR_RESPONSES)
    def list_adapters() -> list[LoraAdapter]:
        return [LoraAdapter(number, adapter.path) for number, adapter in enumerate(state.models.adapters)]

    return list_adapters


def infill_route(state: ServerState) -> Route:
    """The route, for one server."""
    model, tokenizer = state.client.model, state.tokenizer

    @post(
        "/infill",
        summary="Fill in what is between two texts, in llama.cpp's shape",
        responses={200: ResponseSpec(Infill), **ERROR_RESPONSES},
    )
    async def create_infill(request: Request, data: JSONBody[InfillRequest]) -> ASGIApp:
        context = await begin_request(state, request, data)
        context.name_fields({"suffix": "input_suffix"})
        params = _sampling_params(state, data)
        scheduling = scheduling_params(data, context, model)
        before = f"{data.input_prefix or ''}{data.prompt or ''}"
        middle = middle_prompt(tokenizer, before, data.input_suffix or "")
        files = files_prompt(tokenizer, [(file.filename or "tmp", file.text) for file in data.input_extra or ()])
        names = data.response_fields or []
        check("response_fields", len(names), len(names) <= MAX_RESPONSE_FIELDS, f"at most {MAX_RESPONSE_FIELDS} names")

        async def prepare() -> Prepared:
            await resolve_plain(state, context, params)
            (tokens,) = await state.prompts.encode([middle])
            if not files:
                return Prepared([tokens], params)
            (others,) = await state.prompts.encode([files], add_special_tokens=False, too_long=None)
            # The files' end stays, as it is nearest to the gap; llama.cpp does the same.
            room = min(model.max_model_len, model.kv_cache_tokens) - len(tokens) - (params.max_tokens or LEAST_OUTPUT)
            return Prepared([[*others[max(len(others) - max(room, 0), 0) :], *tokens]], params)

        _, generation = await generate(state, context, scheduling, params.n, prepare)
        if data.n_indent or data.t_max_predict_ms:
            seconds = (data.t_max_predict_ms or 0) / 1000
            generation.limit_texts([LineLimits(data.n_indent or 0, seconds).take for _ in range(params.n)])
        answer_format = InfillFormat(
            generation,
            context.model_name,
            files + middle,
            _settings(data, params, model.max_model_len),
            shows_tokens=data.return_tokens is True,
            names=names,
        )
        return respond(generation, answer_format, data.stream is True, context)

    return create_infill


def _sampling_params(state: ServerState, request: InfillRequest) -> SamplingParams:
    limit = output_limit(request.max_tokens, may_be_none=True)
    params = sample_params(request, state.sampling, limit, None, own_constraint(request.structured_outputs))
    add_middle_stops(params, state.tokenizer)
    params.n = 1 if request.n is None else request.n
    return params


def _settings(request: InfillRequest, params: SamplingParams, num_context: int) -> InfillSettings:
    return InfillSettings(
        n_ctx=num_context,
        n_predict=-1 if request.max_tokens is None else request.max_tokens,
        n_indent=request.n_indent or 0,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repeat_penalty=params.repetition_penalty,
        stop=list(params.stop_strings),
        ignore_eos=params.ignore_eos,
        stream=request.stream is True,
    )
