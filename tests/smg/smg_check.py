"""An independent router of the field, smg, drives our nodes, unmodified: whole requests over a gRPC worker and over an HTTP worker,
and a prefill and a decode node over gRPC with its own hand-off (vLLM's NixlConnector way). An OpenAI request through it has the
text that our own router gives; nothing is left behind.

Environment: TANDEM_BUILD, TANDEM_TEST_MODEL, TANDEM_SMG (a Python environment with tests/smg/requirements.txt).
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from harness import ROOT, SCRATCH, Both, all_blocks_back, cluster, free_port, get, in_threads, request, wait_for  # noqa: E402

MODEL, SMG = os.environ["TANDEM_TEST_MODEL"], os.environ["TANDEM_SMG"]
SERVICE = ["--engine-grpc", "--engine-grpc-port", "0"]
PROMPT = "Write one sentence about the sea."
WAIT = 60


class Smg:
    """`smg launch` with these workers, until it serves the model."""

    def __init__(self, *args):
        self.port, figures = free_port(), free_port()
        self.log = os.path.join(tempfile.mkdtemp(dir=SCRATCH), "smg.log")
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen([
                os.path.join(SMG, "bin", "smg"), "launch", "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-host",
                "127.0.0.1", "--prometheus-port", str(figures), "--disable-retries", *args], stdout=log, stderr=log)

    def __enter__(self):
        try:
            wait_for(self.serves, WAIT, f"smg to serve the model; its log is {self.log}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def serves(self):
        """It answers a request: its workers are in, and their tokenizer is loaded."""
        try:
            return request(self.port, "POST", "/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 1}).status == 200
        except OSError:
            if self.proc.poll() is not None:
                with open(self.log, encoding="utf-8") as f:
                    raise AssertionError(f.read()[-3000:]) from None
            return False

    def __exit__(self, *exc):
        self.proc.terminate()
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()


def body(chat, **fields):
    text = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
    return dict({"model": "tiny", "max_tokens": 16, "temperature": 0}, **text, **fields)


def ask(port, chat, **fields):
    """(texts, finish reasons, prompt and completion tokens) of an answer, streamed or whole."""
    a = request(port, "POST", "/v1/chat/completions" if chat else "/v1/completions", body(chat, **fields))
    assert a.status == 200, (fields, a.status, a.body)
    if not fields.get("stream"):
        choices = a.json()["choices"]
        usage = a.json()["usage"]
        return ([c["message"]["content"] if chat else c["text"] for c in choices], [c["finish_reason"] for c in choices],
                usage["prompt_tokens"], usage["completion_tokens"])
    events = [json.loads(line[6:]) for line in a.body.splitlines() if line.startswith("data: {")]
    assert "data: [DONE]" in a.body
    text = "".join((c["delta"].get("content") or "") if chat else c["text"] for e in events for c in e["choices"])
    finish = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
    usage = [e["usage"] for e in events if e.get("usage")][-1]
    return [text], finish, usage["prompt_tokens"], usage["completion_tokens"]


STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CASES = [(True, {}), (False, {}), (True, STREAM), (False, STREAM), (True, {"stop": [" the"]}), (False, {"max_tokens": 1}),
         (True, {"temperature": 0.8, "seed": 7, "top_k": 40, "top_p": 0.9}), (False, {"frequency_penalty": 0.5})]
MIN_TOKENS = (False, {"min_tokens": 4})  # this model would end the plain prompt at once


def same_answers(name, theirs, ours, cases):
    """Each request through smg has the answer of our own router."""
    for chat, fields in cases:
        got, want = ask(theirs, chat, **fields), ask(ours, chat, **fields)
        assert got == want, f"{name}: {fields}: smg gave {got}, our router {want}"
    texts = in_threads([lambda: ask(theirs, True)] * 8)
    assert texts == [ask(ours, True)] * 8, texts
    print(f"{name}: {len(cases)} kinds of requests and 8 at once, equal: {ask(theirs, True)[0][0]!r}", flush=True)


def refused(port, fields, words):
    a = request(port, "POST", "/v1/chat/completions", body(True, **fields))
    assert a.status == 400 and words in a.body, (fields, a.status, a.body)


def leave_early(port):
    """A client that goes away in the middle of a stream."""
    with socket.create_connection(("127.0.0.1", port)) as s:
        text = json.dumps(body(True, max_tokens=1000, stream=True, ignore_eos=True))
        s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
                  f"\r\n\r\n{text}".encode())
        s.recv(200)


def node_metrics(process):
    status, text = get(process.port("admin"), "/metrics")
    assert status == 200
    return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")}


def node_idle(process):
    blocks = {k: v for k, v in node_metrics(process).items() if k.startswith("tandem_node_kv_blocks{")}
    free = sum(v for k, v in blocks.items() if 'state="free"' in k or 'state="cached"' in k)
    return free == sum(blocks.values()) > 0


def check_whole():
    with Both(model=MODEL, args=SERVICE) as b:
        with Smg("--worker-urls", f"grpc://127.0.0.1:{b.proc.port('engine-grpc')}", "--policy", "round_robin") as smg:
            same_answers("gRPC worker", smg.port, b.port, CASES + [(True, {"n": 2}), MIN_TOKENS])
            refused(smg.port, {"logprobs": True}, "logprobs is not supported")
            refused(smg.port, {"max_tokens": 100000}, "maximum context length")
            leave_early(smg.port)
            wait_for(lambda: node_idle(b.proc), WAIT, "the node to end what its client left")
        # cache_aware asks for KV events, of which there are none.
        with Smg("--worker-urls", f"grpc://127.0.0.1:{b.proc.port('engine-grpc')}", "--policy", "cache_aware") as smg:
            same_answers("gRPC worker, cache_aware", smg.port, b.port, CASES[:1])
        with Smg("--worker-urls", f"http://127.0.0.1:{b.port}", "--policy", "round_robin") as smg:
            same_answers("HTTP worker", smg.port, b.port, CASES + [(True, {"n": 2})])


def check_split():
    # HOLD: how long a prompt is kept that smg never hands on.
    with cluster(1, 1, time_scale=1, model=MODEL, node=SERVICE + ["--handoff-hold", "3"]) as cl:
        prefill, decode = cl.nodes["prefill-0"], cl.nodes["decode-0"]
        ours = cl.router.port("http")
        with Smg("--pd-disaggregation", "--prefill", f"grpc://127.0.0.1:{prefill.port('engine-grpc')}", "--decode",
                 f"grpc://127.0.0.1:{decode.port('engine-grpc')}", "--policy", "round_robin") as smg:
            same_answers("prefill and decode over gRPC", smg.port, ours, CASES)
            # smg 1.13.0 asks for no hand-off when n > 1: it would have each node compute the whole.
            a = request(smg.port, "POST", "/v1/completions", body(*MIN_TOKENS[:1], **MIN_TOKENS[1]))
            assert a.status >= 400 and "min_tokens" in a.body, (a.status, a.body)  # nor does it tell the prefill node of this
            refused(smg.port, {"n": 2}, "this node only computes prompts")
            refused(smg.port, {"logprobs": True}, "logprobs is not supported")
            refused(smg.port, {"max_tokens": 100000}, "maximum context length")
            leave_early(smg.port)
        for node in (prefill, decode):
            all_blocks_back(cl, node)
        taken = [line for line in decode.log().splitlines() if 'msg="dc_land"' in line and "req=chatcmpl-" in line]
        assert len(taken) >= len(CASES), "KV went from node to node for smg's requests"
        print(f"KV handed from node to node for {len(taken)} chat requests; all blocks are back", flush=True)


def check_proto():
    """What we declare has the public names, numbers and types: the oracle is smg-grpc-proto's own descriptors."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ours.bin")
        subprocess.run(["protoc", "-I" + os.path.join(ROOT, "proto"), "--include_imports", "--descriptor_set_out=" + path,
                        "vllm_engine.proto"], check=True)
        out = subprocess.run([os.path.join(SMG, "bin", "python"), os.path.join(HERE, "descriptors.py"), path],
                             capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stdout + out.stderr
    print(out.stdout.strip(), flush=True)


def main():
    start = time.monotonic()
    check_proto()
    check_whole()
    check_split()
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
