"""Same tokens: one process, 1P+1D, 2P+3D, other chunk sizes, batched with others, over TCP, after a replay."""
import random

from harness import Both, cluster, in_threads, request, run, tiny_model, tokens_of

MODEL = tiny_model(seed=3, layers=3)
RNG = random.Random(11)
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew green tea in winter".split()


def prompts():
    out = []
    for i in range(50):
        n = [1, 3, 15, 16, 17, 40, 90, 200][i % 8]
        text = " ".join(RNG.choice(WORDS) for _ in range(max(1, n // 2)))
        sampled = {} if i % 2 == 0 else {"temperature": 0.9, "seed": 1000 + i, "top_k": 40 if i % 4 == 1 else 0,
                                         "top_p": 0.95, "min_p": 0.02 if i % 3 == 0 else 0,
                                         "repetition_penalty": 1.1 if i % 5 == 0 else 1.0,
                                         "frequency_penalty": 0.3 if i % 7 == 0 else 0}
        out.append((text, dict(sampled, max_tokens=[1, 2, 20, 33][i % 4], ignore_eos=i % 3 != 0)))
    return out


PROMPTS = prompts()


def all_tokens(port, at_once=1):
    jobs = [lambda p=p, f=f: tokens_of(port, p, **f) for p, f in PROMPTS]
    if at_once == 1:
        return [job() for job in jobs]
    out = []
    for i in range(0, len(jobs), at_once):
        out += in_threads(jobs[i:i + at_once])
    return out


with Both(MODEL) as both:
    REFERENCE = all_tokens(both.port)


def check(tokens):
    for i, (want, got) in enumerate(zip(REFERENCE, tokens)):
        assert want == got, f"prompt {i} {PROMPTS[i]}: {want} != {got}"


def test_the_reference_is_worth_comparing_with():
    assert len({tuple(t) for t in REFERENCE}) > 30
    assert len({id_ for t in REFERENCE for id_ in t}) > 20


def test_one_process_batched_with_others():
    with Both(MODEL) as both:
        check(all_tokens(both.port, 25))


def test_one_prefill_and_one_decode_node():
    with cluster(1, 1, model=MODEL) as cl:
        check(all_tokens(cl.router.port("http")))


def test_two_prefill_and_three_decode_nodes_all_at_once():
    with cluster(2, 3, model=MODEL) as cl:
        check(all_tokens(cl.router.port("http"), 25))
        used = {(r["prefill"], r["decode"]) for r in cl.admin("/requests")["finished"]}
        assert len({p for p, _ in used}) == 2 and len({d for _, d in used}) == 3, used


def test_other_chunk_sizes():
    for chunk, batch in ((16, 16), (48, 64), (512, 512)):
        with cluster(1, 1, model=MODEL, node=["--prefill-chunk", str(chunk), "--max-num-batched-tokens", str(batch)]) as cl:
            check(all_tokens(cl.router.port("http"), 10))


def test_two_steps_in_flight():
    two = ["--steps-in-flight", "2"]
    with Both(MODEL, two) as both:
        check(all_tokens(both.port, 25))
    with cluster(1, 2, model=MODEL, node=two) as cl:
        check(all_tokens(cl.router.port("http"), 10))


def test_over_tcp():
    with cluster(1, 1, model=MODEL, node=["--kv-transports", "tcp,self"]) as cl:
        check(all_tokens(cl.router.port("http"), 5))
        assert {r["transport"] for r in cl.admin("/requests")["finished"] if r["kv_bytes"]} == {"tcp"}


def test_over_cma_where_slices_are_read_from_the_prefill_node():
    with cluster(1, 1, model=MODEL, node=["--kv-transports", "sm,cma", "--kv-checksum"]) as cl:
        check(all_tokens(cl.router.port("http"), 5))
        assert {r["transport"] for r in cl.admin("/requests")["finished"] if r["kv_bytes"]} == {"cma"}


def test_two_compute_threads_and_the_portable_kernels():
    # A layer of these kernels may take longer than a tenth of T_stall.
    with cluster(1, 1, model=MODEL, time_scale=1, prefill_args=["--isa", "portable"], decode_args=["--threads", "2"]) as cl:
        check(all_tokens(cl.router.port("http"), 10))


def test_with_payload_checksums():
    with cluster(1, 1, model=MODEL, node=["--kv-checksum"]) as cl:
        check(all_tokens(cl.router.port("http"), 10))


def test_a_chat_is_the_same_text_everywhere():
    body = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 16}
    with Both(MODEL) as both:
        want = request(both.port, "POST", "/v1/chat/completions", body).json()["choices"]
    with cluster(1, 1, model=MODEL) as cl:
        assert request(cl.router.port("http"), "POST", "/v1/chat/completions", body).json()["choices"] == want


if __name__ == "__main__":
    run(globals())
