"""lm-eval: log-likelihoods and generations of tasks on this machine, by completions and by chat, no tokenizer here."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from checks import Servers, check, main, run
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "London"], "answer": 0},
    {"question": "Two and two make", "choices": ["nine", "four"], "answer": 1},
]
CHOICES = """\
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""
# As HumanEval: more than four stop strings.
TEXTS = """\
task: local_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["\\nclass", "\\ndef", "\\n#", "\\nif", "\\nprint"], max_gen_toks: 16, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


def tasks(folder: Path) -> TaskManager:
    """The tasks in a folder."""
    data = folder / "questions.json"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    (folder / "choices.yaml").write_text(CHOICES.format(data=data))
    (folder / "texts.yaml").write_text(TEXTS.format(data=data))
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluate(servers: Servers, model: str, route: str, task: str, **options: Any) -> Any:
    """One task's results."""
    folder = servers.folder / "tasks"
    folder.mkdir(exist_ok=True)
    arguments = {"model": "smol", "base_url": f"{servers.model}/v1/{route}", "max_retries": 1, **options}
    found = simple_evaluate(model=model, model_args=arguments, tasks=[task], task_manager=tasks(folder), batch_size=2)
    return found["results"][task]


@check
def log_likelihoods(servers: Servers) -> None:
    results = evaluate(servers, "local-completions", "completions", "local_choices", tokenizer_backend="remote")
    assert results["acc,none"] in {0.0, 0.5, 1.0}


@check
def generations(servers: Servers) -> None:
    assert "exact_match,none" in evaluate(
        servers, "local-completions", "completions", "local_texts", tokenizer_backend="remote"
    )


@check
def command_line(servers: Servers) -> None:
    folder = servers.folder / "tasks"
    folder.mkdir(exist_ok=True)
    tasks(folder)
    address = f"model=smol,base_url={servers.model}/v1/completions,tokenizer_backend=remote"
    options = ["--model", "local-completions", "--tasks", "local_choices", "--include_path", str(folder)]
    command = [str(Path(sys.executable).with_name("lm-eval")), "run", *options, "--model_args", address]
    code, output = run(command, dict(os.environ), servers.folder)
    assert code == 0, output
    assert "local_choices" in output, output


@check
def chat_generations(servers: Servers) -> None:
    folder = servers.folder / "tasks"
    folder.mkdir(exist_ok=True)
    found = simple_evaluate(
        model="local-chat-completions",
        model_args={"model": "smol", "base_url": f"{servers.model}/v1/chat/completions", "max_retries": 1},
        tasks=["local_texts"],
        task_manager=tasks(folder),
        apply_chat_template=True,
    )
    assert "exact_match,none" in found["results"]["local_texts"]


main()
