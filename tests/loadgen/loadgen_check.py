"""Load generators of the field against a live cluster, with the served model's own tokenizer: their token counts equal our
metrics exactly; their times to the first token and per token stand beside ours, and with TANDEM_LOADGEN_TIMES=1 must agree
within TOLERANCE. Not asserted otherwise: on a busy machine a client's own processes wait for their turn.

Environment: TANDEM_BUILD, TANDEM_TEST_MODEL, TANDEM_LOADGEN (the Python environment of both), TANDEM_TORCH (Debian's torch,
unpacked, for guidellm). Every engine step is paused, for long where times are asserted, so that a client's own overhead is
small beside what is measured.
"""
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from harness import BUILD, cluster, wait_for  # noqa: E402

MODEL = os.environ["TANDEM_TEST_MODEL"]
REQUESTS, STREAMS, PROMPT, OUTPUT = 20, 4, 50, 12
TOLERANCE = 0.02
ASSERT_TIMES = os.environ.get("TANDEM_LOADGEN_TIMES") == "1"
LOADGEN, TORCH = os.environ["TANDEM_LOADGEN"], os.environ["TANDEM_TORCH"]
LIBRARIES = ("x86_64-linux-gnu", "x86_64-linux-gnu/blas", "x86_64-linux-gnu/lapack", "")
PAUSE = ["--fault", f"step.pause=delay:us={250000 if ASSERT_TIMES else 50000}"]
OFFLINE = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}


class Figures:
    """The router's sums and counts, as differences since creation."""
    NAMES = ("tandem_router_prompt_tokens", "tandem_router_output_tokens", "tandem_router_time_to_first_token_seconds",
             "gen_ai_server_time_per_output_token_seconds")

    def __init__(self, cl):
        self.cl, self.start = cl, self.read(cl)

    def read(self, cl):
        out = {}
        for key, value in cl.metrics(cl.router).items():
            name = key.split("{")[0]
            if any(name in (n + "_sum", n + "_count") for n in self.NAMES):
                out[name] = out.get(name, 0) + value
        return out

    def delta(self, name):
        return self.read(self.cl).get(name, 0) - self.start.get(name, 0)

    def mean(self, name):
        return self.delta(name + "_sum") / self.delta(name + "_count")


def tool(env, name, *args, **extra):
    done = subprocess.run([os.path.join(env, "bin", name), *args], capture_output=True, text=True, timeout=150,
                          env=dict(os.environ, **OFFLINE, **extra))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def medians(cl, n):
    """Of the router's last n requests, seconds to the first token and between tokens: what its metrics were made of."""
    rows = json.loads(cl.fetch(f"http://127.0.0.1:{cl.router.port('admin')}/requests"))["finished"][:n]
    assert len(rows) == n
    return [statistics.median(r[k] for r in rows) / 1e6 for k in ("ttft_us", "tpot_us")]


def compare(name, figures, theirs, outputs=True, ours_s=None):
    """theirs: requests, input and output tokens in all, mean seconds to the first token and between tokens. A client that encodes
    an answer's text again may get fewer tokens than made it (outputs=False): a model need not choose the shortest spelling."""
    requests, tokens_in, tokens_out, ttft, tpot = theirs
    ours = {n: figures.delta(f"tandem_router_{n}_tokens_sum") for n in ("prompt", "output")}
    assert figures.delta("tandem_router_prompt_tokens_count") == requests, (name, requests)
    assert ours["prompt"] == tokens_in, f"{name}: {tokens_in} prompt tokens, metrics say {ours['prompt']}"
    assert ours["output"] == tokens_out or not outputs, f"{name}: {tokens_out} output tokens, metrics say {ours['output']}"
    line = f"{name}: {requests} requests, {tokens_in} prompt" + (f" and {tokens_out} output" if outputs else "") + " tokens, equal"
    worst = 0
    for what, value, metric in (("TTFT", ttft, "tandem_router_time_to_first_token_seconds"),
                                ("TPOT", tpot, "gen_ai_server_time_per_output_token_seconds")):
        mine = figures.mean(metric) if ours_s is None else ours_s[what == "TPOT"]
        if what == "TPOT" and not outputs:
            continue  # their time over another number of tokens
        off = value / mine - 1
        line += f"; {what} {1000 * value:.1f} ms, ours {1000 * mine:.1f} ms ({100 * off:+.2f} %)"
        worst = max(worst, abs(off))
    print(line, flush=True)
    assert worst <= TOLERANCE or not ASSERT_TIMES, line


def aiperf(cl, tokenizer, kind, more=()):
    figures = Figures(cl)
    with tempfile.TemporaryDirectory() as out:
        tool(LOADGEN, "aiperf", "profile", "--model", "tiny", "--url", cl.url(""), "--endpoint-type", kind,
             "--streaming", "--tokenizer", tokenizer, "--request-count", str(REQUESTS), "--concurrency", str(STREAMS),
             "--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(OUTPUT), "--extra-inputs", "ignore_eos:true",
             "--random-seed", "7", "--ui-type", "none", "--no-gpu-telemetry", "--artifact-dir", out, *more)
        path, = glob.glob(os.path.join(out, "**", "profile_export.jsonl"), recursive=True)
        with open(path, encoding="utf-8") as f:
            rows = [json.loads(line)["metrics"] for line in f if line.strip()]

    def column(name):
        return [r[name]["value"] for r in rows]

    settle(cl)
    return figures, (len(rows), sum(column("input_sequence_length")), sum(column("output_sequence_length")),
                     sum(column("time_to_first_token")) / len(rows) / 1000, sum(column("inter_token_latency")) / len(rows) / 1000)


def guidellm(cl, tokenizer):
    figures = Figures(cl)
    with tempfile.TemporaryDirectory() as out:
        path = os.path.join(out, "g.json")
        tool(LOADGEN, "guidellm", "run", "--backend", f"kind=openai_http,target={cl.url('')},model=tiny",
             "--profile", f"kind=concurrent,streams={STREAMS}", "--constraint", f"kind=max_requests,count={REQUESTS}",
             "--tokenizer", f"kind=hf_auto,model={tokenizer}",
             "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
             "--output", f"kind=json,path={path}", "--disable-console-interactive", HF_HUB_OFFLINE="1",
             PYTHONPATH=os.path.join(TORCH, "only"), LD_LIBRARY_PATH=":".join(os.path.join(TORCH, "usr/lib", d) for d in LIBRARIES))
        with open(path, encoding="utf-8") as f:
            bench, = json.load(f)["benchmarks"]
    done = bench["requests"]["successful"]
    settle(cl)
    return figures, (len(done), sum(r["prompt_tokens"] for r in done), sum(r["output_tokens"] for r in done),
                     statistics.median(r["time_to_first_token_ms"] for r in done) / 1000,
                     statistics.median(r["inter_token_latency_ms"] for r in done) / 1000)


def settle(cl):
    wait_for(lambda: sum(v for k, v in cl.metrics(cl.router).items() if k.startswith("tandem_router_running_requests")) == 0, 20,
             "the router to be idle")


def main():
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as tokenizer:
        subprocess.run([os.path.join(BUILD, "ctl", "tandemctl"), "export-tokenizer", tokenizer, "--model", MODEL], check=True,
                       stdout=subprocess.DEVNULL)
        with cluster(1, 1, time_scale=1, model=MODEL, node=PAUSE) as cl:
            compare("aiperf, completions, its own count", *aiperf(cl, tokenizer, "completions"), outputs=False)
            compare("aiperf, chat, the server's counts", *aiperf(cl, tokenizer, "chat", ["--use-server-token-count"]))
            # Medians: the first request of each of its processes includes the start of that process's client.
            figures, theirs = guidellm(cl, tokenizer)
            compare("guidellm, chat, medians", figures, theirs, ours_s=medians(cl, REQUESTS))
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
