"""The default model, once, in a release build: split and whole give the same tokens, and they are the oracle's.

$TANDEM_TEST_MODEL is the file; without it the suite is skipped (./dev test downloads it).
"""
import json
import os
import sys

from harness import ROOT, Both, Cluster, BUILD, SCRATCH, in_threads, request, run, tokens_of, wait_for

MODEL = os.environ.get("TANDEM_TEST_MODEL", "")
if not os.path.exists(MODEL):
    print("1..0 # SKIP no default model in $TANDEM_TEST_MODEL: run ./dev test")
    sys.exit(0)

with open(os.path.join(ROOT, "tests", "golden", "model", "demo.json"), encoding="utf-8") as f:
    DEMO = json.load(f)

CLEAR = 0.5  # gap of logits above which int8 activations cannot change the best token
GREEDY = [
    ("Once upon a time, in a small village by the sea,", 24),
    ("def fibonacci(n):\n    if n < 2:\n        return n\n    return", 16),
    ("La r\u00e9volution fran\u00e7aise commence en", 16),
    ("\u6771\u4eac\u306f\u65e5\u672c\u306e", 16),
    ("The three laws of thermodynamics are: 1.", 24),
    ("2 + 2 = 4, 3 + 3 = 6, 4 + 4 =", 8),
    ("a", 12),
    ("The quick brown fox jumps over the lazy dog. " * 24, 16),  # several chunks
]
SEEDED = [(GREEDY[i][0], 16, {"temperature": 0.8, "seed": 100 + i, "top_p": 0.95, "top_k": 40}) for i in (0, 2, 4, 7)]


def ask_all(port, at_once=False):
    jobs = [lambda p=p, n=n: tokens_of(port, p, max_tokens=n) for p, n in GREEDY]
    jobs += [lambda p=p, n=n, f=f: tokens_of(port, p, max_tokens=n, **f) for p, n, f in SEEDED]
    return in_threads(jobs) if at_once else [job() for job in jobs]


def demo_answer(port):
    a = request(port, "POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": DEMO["question"]}], "temperature": 0, "max_tokens": len(DEMO["answer"]),
        "return_token_ids": True})
    assert a.status == 200, a.body
    assert a.json()["usage"]["prompt_tokens"] == len(DEMO["prompt"])
    return a.json()["choices"][0]["token_ids"]


class Runs:
    """Both ways of running, each once; tests compare."""

    def __init__(self):
        with Both(MODEL) as both:
            self.whole, self.whole_demo = ask_all(both.port), demo_answer(both.port)
        with Cluster(BUILD, MODEL, "tiny", folder=os.path.join(SCRATCH)) as cl:
            port = cl.router.port("http")
            self.split, self.split_demo = ask_all(port), demo_answer(port)
            self.batched = ask_all(port, at_once=True)
            self.records = cl.admin("/requests")["finished"]
            wait_for(lambda: not cl.admin("/requests")["live"], 20, "the end")
            self.blocks = [cl.blocks(node) for node in cl.nodes.values()]
        # 9 heads over 3 KV heads: shares of 1 and 2 heads, and of one each.
        with Cluster(BUILD, MODEL, "tiny", folder=os.path.join(SCRATCH), tp={"prefill": 2, "decode": 3}) as cl:
            self.ranks, self.ranks_demo = ask_all(cl.router.port("http"), at_once=True), demo_answer(cl.router.port("http"))


RUNS = Runs()


def test_prefill_and_decode_nodes_give_the_tokens_of_one_process():
    assert RUNS.split_demo == RUNS.whole_demo
    for i, (want, got) in enumerate(zip(RUNS.whole, RUNS.split)):
        assert want == got, (i, want, got)


def test_batched_with_others_the_tokens_are_the_same():
    for i, (want, got) in enumerate(zip(RUNS.whole, RUNS.batched)):
        assert want == got, (i, want, got)


def test_nodes_of_several_processes_give_the_tokens_of_one():
    assert RUNS.ranks_demo == RUNS.whole_demo
    for i, (want, got) in enumerate(zip(RUNS.whole, RUNS.ranks)):
        assert want == got, (i, want, got)


def test_the_tokens_are_worth_comparing():
    assert len({tuple(t) for t in RUNS.whole}) == len(RUNS.whole)
    assert {r["decode"] for r in RUNS.records} == {"decode-0"} and {r["prefill"] for r in RUNS.records} == {"prefill-0"}


def test_the_demo_answer_is_the_oracles_while_its_tokens_are_clear():
    assert DEMO["gap"][0] >= CLEAR and DEMO["gap"][1] >= CLEAR and DEMO["gap"][2] >= CLEAR
    for i, (want, gap) in enumerate(zip(DEMO["answer"], DEMO["gap"])):
        if gap >= CLEAR:
            assert RUNS.split_demo[i] == want, (i, gap, RUNS.split_demo, DEMO["answer"])
        elif RUNS.split_demo[i] != want:
            break  # a near tie went the other way: what follows is another answer


def test_every_block_is_back():
    for b in RUNS.blocks:
        assert b["free"] + b["cached"] == sum(b.values()) > 0, b


if __name__ == "__main__":
    run(globals())
