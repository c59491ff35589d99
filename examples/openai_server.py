"""The HTTP server, used by the official `openai` package."""

import subprocess
import sys

from openai import OpenAI

server = subprocess.Popen([sys.executable, "-m", "pyllm", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
assert server.stdout is not None
address = server.stdout.readline().split()[4]  # "pyllm is ready on ADDRESS - try: ..."
client = OpenAI(base_url=f"{address}/v1", api_key="none")
model = client.models.list().data[0].id
for chunk in client.completions.create(
    model=model, prompt="The capital of France is", max_tokens=8, temperature=0, stream=True
):
    print(chunk.choices[0].text, end="", flush=True)
print()
server.terminate()
server.wait()
