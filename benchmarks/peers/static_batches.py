"""`transformers.generate` over static batches: the cost of serving without an engine.

`python -m benchmarks.peers.static_batches NUMBER LEAST MOST BATCH_SIZE` prints one JSON object. Requests are taken in
order, padded to the longest of their batch, and all of a batch run until its longest has ended; tokens beyond a
request's own length are not counted. The embedded model, in bfloat16. Knows no server.
"""

import json
import sys
import time

import torch

from benchmarks.peers.peer_models import transformers_model, transformers_tokenizer
from benchmarks.servers.load import MIXED_SEED, mixed_requests, warm_up_requests
from pyllm.bench.prompt_sets import Prompt
from pyllm.checkpoint.reader import read_checkpoint


def main() -> None:
    number, least, most, batch_size = map(int, sys.argv[1:])
    checkpoint = read_checkpoint("")
    model, tokenizer = transformers_model(checkpoint, torch.bfloat16), transformers_tokenizer(checkpoint)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model.generation_config.eos_token_id = None  # every request gets all of its tokens
    model.generation_config.pad_token_id = tokenizer.pad_token_id

    @torch.inference_mode()
    def generate(batch: list[Prompt]) -> None:
        inputs = tokenizer([request.text for request in batch], padding=True, return_tensors="pt")
        length = max(request.output_tokens for request in batch)
        ids = model.generate(**inputs, do_sample=False, min_new_tokens=length, max_new_tokens=length)
        assert ids.shape[1] == inputs["input_ids"].shape[1] + length

    generate(warm_up_requests())
    requests = mixed_requests(number, least, most, MIXED_SEED)
    begin = time.perf_counter()
    for first in range(0, number, batch_size):
        generate(requests[first : first + batch_size])
    seconds = time.perf_counter() - begin
    tokens = sum(request.output_tokens for request in requests)
    print(
        json.dumps(
            {
                "concurrency": batch_size,
                "requests": number,
                "seconds": round(seconds, 2),
                "output_tokens_per_s": round(tokens / seconds, 1),
                "requests_per_s": round(number / seconds, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
