"""Hugging Face directories: router and nodes serve them, and a split answer is that of one process, with windows, biases and
head norms alike."""
import json
import os
import random
import subprocess

from harness import BUILD, SCRATCH, Both, chat, cluster, in_threads, run, tokens_of

RNG = random.Random(5)
WORDS = "the router sends each request to a prefill node and the decode node writes the answer one token at a time".split()
# Shorter than a window of 72, around it, several windows and over the end of an attention chunk.
LENGTHS = (3, 30, 75, 160, 300)
PROMPTS = [(" ".join(RNG.choice(WORDS) for _ in range(n)), {} if n % 2 == 0 else {"temperature": 0.8, "seed": n}) for n in LENGTHS]


def directory(shape):
    path = os.path.join(SCRATCH, shape)
    if not os.path.exists(path):
        subprocess.run([os.path.join(BUILD, "ctl", "tandemctl"), "make-model", "--shape", shape, "--seed", "1", path], check=True,
                       stdout=subprocess.DEVNULL)
    return path


def answers(port):
    out = in_threads([lambda p=p, f=f: tokens_of(port, p, max_tokens=20, ignore_eos=True, **f) for p, f in PROMPTS])
    a = chat(port, "hello", max_tokens=12)
    assert a.status == 200, a.body
    return out, a.json()["choices"][0]["message"]["content"]


def compare(shape):
    model = directory(shape)
    with Both(model) as both:
        want = answers(both.port)
    assert len({t for tokens in want[0] for t in tokens}) > 20, want
    with cluster(1, 1, model=model, node=["--prefill-chunk", "48"]) as cl:
        assert answers(cl.router.port("http")) == want
        assert any(r["kv_bytes"] > 0 for r in cl.admin("/requests")["finished"])


def test_a_windowed_model_gives_the_same_tokens_split():
    compare("tiny-mistral")


def test_a_window_lets_an_answer_outgrow_the_pool():
    model = directory("tiny-mistral")  # a window of 72 tokens: at most 6 blocks of 16, and one ahead
    ask = dict(max_tokens=400, ignore_eos=True)
    with Both(model) as both:
        want = tokens_of(both.port, "the router", **ask)
    assert len(want) == 400
    for steps in ("1", "2"):
        with Both(model, ["--kv-blocks", "8", "--steps-in-flight", steps]) as both:
            assert tokens_of(both.port, "the router", **ask) == want


def test_head_norms_give_the_same_tokens_split():
    compare("tiny-qwen3")


def test_biases_give_the_same_tokens_split():
    compare("tiny-qwen2")


def test_the_directorys_defaults_count_where_a_request_is_silent():
    model = directory("tiny-llama")
    with open(os.path.join(model, "generation_config.json"), encoding="ascii") as f:
        generation = json.load(f)
    generation["top_k"] = 1  # so that any temperature is greedy
    with open(os.path.join(model, "generation_config.json"), "w", encoding="ascii") as f:
        json.dump(generation, f)
    with Both(model) as both:
        greedy = tokens_of(both.port, "the node", temperature=0)
        assert tokens_of(both.port, "the node", temperature=2, seed=1) == greedy
        assert tokens_of(both.port, "the node", temperature=2, seed=1, top_k=-1) != greedy


if __name__ == "__main__":
    run(globals())
