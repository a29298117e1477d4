"""Nodes that die or freeze at ten points of a request's life: what the client sees, and that every block comes back.

A point is a way to hold the request there (a fault point of a node) and a moment to strike. Bounds are scaled by
TIME_SCALE; they are asserted as outcomes, with generous polling.
"""
import json
import signal
import time

from harness import Stream, all_blocks_back, chat, cluster, get, in_threads, request, run, tokens_of, wait_for

TOKENS = 20
TEXT = "the life of one request " * 6
SLOW_STEPS = ["--fault", "step.pause=delay:us=50000"]
SMALL_CHUNKS = ["--prefill-chunk", "16", "--max-num-batched-tokens", "16"]
SLOW_SLICES = ["--fault", "xfer.slice.delay=delay:us=60000"]

# name, extra arguments of prefill and decode nodes, role struck, tokens seen by the client before the strike
POINTS = [
    ("prefill dies before its first chunk", SLOW_STEPS, [], "prefill", 0, 0.01),
    ("prefill dies between chunks", SLOW_STEPS + SMALL_CHUNKS, [], "prefill", 0, 0.1),
    ("prefill dies while slices go out", SLOW_SLICES + ["--prefill-chunk", "16"], [], "prefill", 0, 0.1),
    ("prefill dies after the first token, slices under way", SLOW_SLICES, [], "prefill", 1, 0.0),
    ("prefill dies when the decode node runs", [], SLOW_STEPS, "prefill", 3, 0.0),
    ("decode dies before the first chunk", SLOW_STEPS, [], "decode", 0, 0.01),
    ("decode dies between chunks", SLOW_STEPS + SMALL_CHUNKS, [], "decode", 0, 0.1),
    ("decode dies while slices arrive", SLOW_SLICES + ["--prefill-chunk", "16"], [], "decode", 0, 0.1),
    ("decode dies after the first token, before it took over", SLOW_SLICES, [], "decode", 1, 0.0),
    ("decode dies in mid-answer", [], SLOW_STEPS, "decode", 3, 0.0),
]


def run_point(point, how):
    name, p_args, d_args, role, seen, delay = point
    with cluster(2, 2, prefill_args=p_args, decode_args=d_args) as cl:
        port = cl.router.port("http")
        want = None
        s = Stream(port, "/v1/completions", prompt=TEXT, max_tokens=TOKENS, ignore_eos=True, return_token_ids=True)
        events, got, error = None, [], None
        if seen == 0:
            wait_for(lambda: busy(cl), 10, "the request to be placed")
            time.sleep(delay)
        else:
            events = s.events()
            while len(got) < seen:
                got += ids_of(next(events))
        victim = where(cl)[role]
        node = cl.nodes[victim]
        node.kill() if how == "kill" else node.signal(signal.SIGSTOP)
        try:
            for event in events if events is not None else s.events():
                error = event.get("error", error)
                got += ids_of(event)
        finally:
            s.close()
        assert error is None, (name, how, error)
        assert s.done and len(got) == TOKENS, (name, how, got)
        want = tokens_of(port, TEXT, max_tokens=TOKENS, ignore_eos=True)
        assert got == want, (name, how, got, want)
        others = [n for n in cl.nodes.values() if n.name != victim]
        for n in others:
            all_blocks_back(cl, n)
        check_recovery(cl, node, how, port)


def check_recovery(cl, node, how, port):
    """The rest serves; the node comes back without anybody else being restarted."""
    a = chat(port)
    assert a.status == 200, a.body
    if how == "kill":
        cl.restart(node.name)
    else:
        node.signal(signal.SIGCONT)
    cl.wait_ready(2, 2, timeout=30)
    for _ in range(4):
        assert chat(port).status == 200
    for n in cl.nodes.values():
        all_blocks_back(cl, n)


def ids_of(event):
    return [i for c in event.get("choices", []) for i in c.get("token_ids") or []]


def busy(cl):
    live = cl.admin("/requests")["live"]
    return bool(live) and live[0]["phase"] in ("prefill", "decode")


def where(cl):
    """Names of the nodes that run the one request."""
    found = {}
    for node in cl.admin("/nodes")["nodes"]:
        if node["inflight"]:
            found[node["role"]] = node["name"]
    if "prefill" not in found:  # it has handed over: any prefill node will do
        found["prefill"] = next(n for n in cl.nodes if n.startswith("prefill"))
    return found


def run_points(how):
    """Two clusters at a time: most of a point is waiting."""
    for i in range(0, len(POINTS), 2):
        in_threads([lambda p=point: run_point(p, how) for point in POINTS[i:i + 2]])


def test_killed_nodes_at_ten_points():
    run_points("kill")


def test_stopped_nodes_at_ten_points():
    run_points("stop")


def test_without_another_pair_the_client_gets_a_typed_error():
    with cluster(1, 1, decode_args=SLOW_STEPS, router=["--pair-wait", "0.5"]) as cl:
        s = Stream(cl.router.port("http"), max_tokens=50, ignore_eos=True)
        events = s.events()
        next(events), next(events)
        cl.nodes["decode-0"].kill()
        last = list(events)[-1]
        assert last["error"]["code"] == "node_lost", last
        assert s.done
        s.close()
        all_blocks_back(cl, cl.nodes["prefill-0"])
        a = chat(cl.router.port("http"))
        assert a.status == 503 and a.error()["code"] == "no_ready_node"
        cl.restart("decode-0")
        cl.wait_ready(1, 1)
        assert chat(cl.router.port("http")).status == 200


def test_a_router_that_dies_frees_its_work():
    with cluster(1, 1, node=SLOW_STEPS) as cl:
        s = Stream(cl.router.port("http"), max_tokens=100, ignore_eos=True)
        next(s.events())
        cl.router.kill()
        s.close()
        for n in cl.nodes.values():
            all_blocks_back(cl, n)


def test_two_routers_share_the_nodes():
    with cluster(1, 2) as cl:
        second = cl.make_router("router-2").start()
        try:
            port = second.port("http")
            wait_for(lambda: get(port, "/health")[0] == 200, 20, "the second router")
            ports = [cl.router.port("http"), port] * 8
            answers = in_threads([lambda p=p: tokens_of(p, "shared", max_tokens=10) for p in ports])
            assert len({tuple(a) for a in answers}) == 1
            second.kill()
            assert chat(cl.router.port("http")).status == 200
            for n in cl.nodes.values():
                all_blocks_back(cl, n)
        finally:
            second.stop()


def test_lost_hand_over_messages_end_in_a_replay():
    for point, role in (("xfer.table.drop", "decode_args"), ("xfer.record.drop", "prefill_args"), ("xfer.ack.drop", "decode_args")):
        with cluster(1, 1, **{role: ["--fault", f"{point}=fail:times=1"]}) as cl:
            port = cl.router.port("http")
            got = tokens_of(port, TEXT, max_tokens=6, ignore_eos=True)
            assert got == tokens_of(port, TEXT, max_tokens=6, ignore_eos=True), point
            for n in cl.nodes.values():
                all_blocks_back(cl, n)


def test_flipped_headers_and_payloads_are_noticed_and_recomputed():
    for point in ("kv.header.flip", "kv.byte.flip"):
        with cluster(1, 1, prefill_args=["--fault", f"{point}=fail:times=1"], node=["--kv-checksum"]) as cl:
            port = cl.router.port("http")
            got = tokens_of(port, TEXT, max_tokens=6, ignore_eos=True)
            assert got == tokens_of(port, TEXT, max_tokens=6, ignore_eos=True), point
            retries = [v for k, v in cl.metrics(cl.router).items() if k.startswith("tandem_router_retries_total")]
            assert sum(retries) >= 1, point
            for n in cl.nodes.values():
                all_blocks_back(cl, n)


def test_failed_posts_and_failed_rows_are_replayed():
    for args in (["--fault", "xfer.post.fail=fail:times=1"], ["--fault", "step.fail=fail:times=1"]):
        with cluster(1, 1, prefill_args=args) as cl:
            port = cl.router.port("http")
            assert tokens_of(port, TEXT, max_tokens=6, ignore_eos=True) == tokens_of(port, TEXT, max_tokens=6, ignore_eos=True)


def test_dropped_control_connections_lose_nothing():
    with cluster(1, 1, node=["--fault", "ctl.drop=fail:prob=0.02"]) as cl:
        port = cl.router.port("http")
        answers = in_threads([lambda: tokens_of(port, "resume", max_tokens=20, ignore_eos=True) for _ in range(8)])
        assert len({tuple(a) for a in answers}) == 1 and len(answers[0]) == 20


def test_a_decode_pool_too_small_for_one_request_says_so_and_lives():
    with cluster(1, 1, decode_args=["--kv-blocks", "4"]) as cl:
        port = cl.router.port("http")
        a = request(port, "POST", "/v1/completions", {"prompt": "x" * 30, "max_tokens": 200, "ignore_eos": True})
        assert a.status in (502, 503) and a.error()["code"] in ("no_capacity", "replays_exhausted"), a.body
        assert chat(port, "a", max_tokens=2).status in (200, 503)
        a = request(port, "POST", "/v1/completions", {"prompt": "too long for the pool, not for the context " * 9})
        assert (a.status, a.error()["code"]) == (400, "context_length_exceeded") and "KV pool" in a.body, a.body
        assert "the KV pool is smaller than --max-model-len" in cl.nodes["decode-0"].log()
        assert "the KV pool is smaller" not in cl.nodes["prefill-0"].log()
        all_blocks_back(cl, cl.nodes["decode-0"])


def test_waits_never_pass_their_deadline():
    with cluster(1, 1, node=SLOW_STEPS) as cl:
        s = Stream(cl.router.port("http"), max_tokens=10, ignore_eos=True)
        for _ in s.events():
            for n in cl.nodes.values():
                waits = json.loads(get(n.port("admin"), "/debug/waits")[1])["waits"]
                assert all(w["deadline_in_us"] > -1000000 for w in waits), waits
        s.close()


if __name__ == "__main__":
    run(globals())
