"""A node alone on a GPU, asked by the stock client: 64 streams at once give the text that each gives alone.

    python3 tests/bench/gpu/serve_check.py TANDEM_PREFILL MODEL [OPTION ...]     (needs the openai package)

Starts `TANDEM_PREFILL --role both --backend cuda --deterministic` with the options behind it, and again without
--deterministic, where decode rows may share a product with a chunk: there the share that agrees is told, not required.
Prints one JSON line for each; exits 1 when a text of the deterministic run differs or a request fails.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import openai

STREAMS = 64
MAX_TOKENS = 96


def start(program, model, options):
    ports = os.path.join(tempfile.mkdtemp(), "ports")
    log = open(ports + ".log", "w+", encoding="utf-8")
    p = subprocess.Popen([program, "--model", model, "--role", "both", "--backend", "cuda", "--port", "0", "--admin-port", "0",
                          "--router-admin-port", "0", "--port-file", ports, "--max-num-seqs", str(STREAMS), *options],
                         stdout=log, stderr=log)
    deadline = time.monotonic() + 120
    while not os.path.exists(ports):
        if p.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            sys.exit(f"the node does not start: {log.read()[-3000:]}")
        time.sleep(0.05)
    with open(ports, encoding="utf-8") as f:
        port = dict(line.split(" ", 1) for line in f.read().splitlines())["http"]
    return p, f"http://127.0.0.1:{port}/v1", log


def prompt(i):
    words = ("the river", "a clock", "nine apples", "its own shadow", "blue paper", "an old map", "rain", "the lighthouse")
    return f"{i}. " + " and ".join(words[(i * 7 + k * (i % 5 + 1)) % len(words)] for k in range(1 + i * 3 % 60))


def ask(client, i):
    """One streamed completion; its text, the number of tokens and the time to the first of them."""
    begin, first, text, usage = time.monotonic(), None, [], None
    stream = client.completions.create(model="default", prompt=prompt(i), max_tokens=MAX_TOKENS, stream=True, seed=i,
                                       temperature=0 if i % 2 == 0 else 0.8, top_p=0.95, stream_options={"include_usage": True})
    for chunk in stream:
        if chunk.choices and chunk.choices[0].text:
            first = first or time.monotonic() - begin
            text.append(chunk.choices[0].text)
        usage = chunk.usage or usage
    return "".join(text), usage.completion_tokens, first


def measure(program, model, options, deterministic):
    p, url, log = start(program, model, options + (["--deterministic"] if deterministic else []))
    try:
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
        ask(client, 0)
        begin = time.monotonic()
        alone = [ask(client, i) for i in range(STREAMS)]
        alone_s = time.monotonic() - begin
        with ThreadPoolExecutor(STREAMS) as pool:
            begin = time.monotonic()
            together = list(pool.map(lambda i: ask(client, i), range(STREAMS)))
            together_s = time.monotonic() - begin
        log.seek(0)
        bad = [line for line in log if "level=error" in line or "level=warn" in line]
    finally:
        p.terminate()
        code = p.wait(30)
    same = sum(a[:2] == b[:2] for a, b in zip(alone, together))
    tokens = sum(t[1] for t in together)
    first = sorted(t[2] for t in together if t[2] is not None)
    print(json.dumps({"name": "serve", "deterministic": deterministic, "streams": STREAMS, "same": same, "tokens": tokens,
                      "alone_s": round(alone_s, 3), "together_s": round(together_s, 3),
                      "tok_s": round(tokens / together_s), "first_token_s_p50": round(first[len(first) // 2], 4),
                      "exit": code, "bad_lines": bad[:3]}), flush=True)
    return same == STREAMS and code == 0 and not bad


if __name__ == "__main__":
    arguments = sys.argv[3:]
    good = measure(sys.argv[1], sys.argv[2], arguments, True)
    measure(sys.argv[1], sys.argv[2], arguments, False)
    sys.exit(0 if good else 1)
