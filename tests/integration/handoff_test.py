"""An outside router's hand-offs while nodes are killed or freeze: between hold and take, and in a take. The outside router is told,
asks again elsewhere and gets the same tokens; every block comes back.

Needs the pinned packages of tests/requirements.txt (TANDEM_TEST_PYTHON).
"""
import os
import sys

PINNED = os.environ.get("TANDEM_TEST_PYTHON", sys.executable)
if os.path.abspath(sys.executable) != os.path.abspath(PINNED):
    os.execv(PINNED, [PINNED] + sys.argv)  # the interpreter that has the packages

import signal  # noqa: E402
import threading  # noqa: E402

from engine_client import SERVICE, code_of, grpc, hold, request_of, tokenizer, whole  # noqa: E402
from harness import all_blocks_back, cluster, run, tokens_of, wait_for  # noqa: E402

PROMPT = "the quick brown fox jumps over the lazy dog " * 8
SHARED = {}


def nodes():
    """Two nodes of each role; a slice takes its time, so that a take can be struck."""
    if "cluster" not in SHARED:
        SHARED["cluster"] = cluster(
            2, 2, node=list(SERVICE) + ["--handoff-hold", "60"],
            prefill_args=["--prefill-chunk", "32", "--fault", "xfer.slice.delay=delay:us=20000"]).__enter__()
        SHARED["ids"] = tokenizer(node("prefill-0")).encode(PROMPT).ids
        SHARED["want"] = tokens_of(SHARED["cluster"].router.port("http"), PROMPT)
    return SHARED["cluster"]


def node(name):
    return nodes().nodes[name]


def hold_at(name):
    held = hold(node(name), SHARED["ids"])
    assert list(held.output_ids) == SHARED["want"][:1], held
    return held.kv_transfer_params_json


def take_at(name, kv, timeout=30):
    return list(whole(node(name), request_of(SHARED["ids"], kv), timeout).output_ids)


def held(name):
    return sum(v for k, v in nodes().metrics(node(name)).items() if k.startswith("tandem_node_prefill_held_requests"))


def clean(*names):
    for name in names or nodes().nodes:
        all_blocks_back(nodes(), node(name))


def again():
    """All is well: a hold on each prefill node is taken by a decode node."""
    for p, d in (("prefill-0", "decode-0"), ("prefill-1", "decode-1")):
        assert take_at(d, hold_at(p)) == SHARED["want"], (p, d)
    clean()


def in_transfer(name):
    """Slices have come in, but the take is not over."""
    waits = nodes().fetch(f"http://127.0.0.1:{node(name).port('admin')}/debug/waits")
    return "slices and record" in waits


def taking(name, kv):
    """A take in the background that is being transferred: a function that waits for its result."""
    result = {}

    def go():
        try:
            result["ids"] = take_at(name, kv)
        except grpc.RpcError as e:
            result["code"] = e.code(), dict(e.trailing_metadata() or ()).get("tandem-code", "")

    t = threading.Thread(target=go)
    t.start()
    wait_for(lambda: in_transfer(name), 10, "the take to be under way")

    def done():
        t.join(30)
        assert not t.is_alive()
        return result
    return done


def test_hand_offs_cross_all_pairs():
    nodes()
    again()
    for p, d in (("prefill-0", "decode-1"), ("prefill-1", "decode-0")):
        assert take_at(d, hold_at(p)) == SHARED["want"], (p, d)
    clean()


def test_a_prefill_node_killed_after_a_hold_is_missed_by_who_takes_it():
    kv = hold_at("prefill-0")
    node("prefill-0").kill()
    status, code = code_of(lambda: take_at("decode-0", kv))
    assert status == grpc.StatusCode.UNAVAILABLE and code in ("node_lost", "transport_error"), (status, code)
    clean("decode-0")
    assert take_at("decode-0", hold_at("prefill-1")) == SHARED["want"]
    nodes().restart("prefill-0")
    status, code = code_of(lambda: take_at("decode-1", kv))  # its successor knows nothing of it
    assert status == grpc.StatusCode.UNAVAILABLE and code in ("node_lost", "transport_error", "stale"), (status, code)
    again()


def test_a_decode_node_killed_before_it_takes_leaves_the_hold_to_another():
    kv = hold_at("prefill-0")
    assert held("prefill-0") == 1 and held("prefill-1") == 0
    node("decode-0").kill()
    assert code_of(lambda: take_at("decode-0", kv))[0] == grpc.StatusCode.UNAVAILABLE
    assert take_at("decode-1", kv) == SHARED["want"]
    clean("prefill-0", "prefill-1", "decode-1")
    assert held("prefill-0") == 0
    nodes().restart("decode-0")
    again()


def test_a_decode_node_killed_in_a_take_gives_prefill_its_blocks_back():
    kv = hold_at("prefill-1")
    done = taking("decode-0", kv)
    node("decode-0").kill()
    assert done()["code"][0] == grpc.StatusCode.UNAVAILABLE, done()
    clean("prefill-1")
    status, code = code_of(lambda: take_at("decode-1", kv))  # a hold is given away once
    assert (status, code) == (grpc.StatusCode.UNAVAILABLE, "stale")
    assert take_at("decode-1", hold_at("prefill-1")) == SHARED["want"]
    nodes().restart("decode-0")
    again()


def test_a_prefill_node_killed_in_a_take_is_told_and_decode_serves_on():
    kv = hold_at("prefill-0")
    done = taking("decode-1", kv)
    node("prefill-0").kill()
    status, code = done()["code"]
    assert status == grpc.StatusCode.UNAVAILABLE and code in ("node_lost", "transfer_stalled"), (status, code)
    clean("decode-1")
    assert take_at("decode-1", hold_at("prefill-1")) == SHARED["want"]
    nodes().restart("prefill-0")
    again()


def test_a_frozen_prefill_node_costs_a_taker_its_time_and_nothing_else():
    kv = hold_at("prefill-1")
    node("prefill-1").signal(signal.SIGSTOP)
    status, _ = code_of(lambda: take_at("decode-0", kv, timeout=2))
    assert status in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE), status
    clean("decode-0")
    assert take_at("decode-0", hold_at("prefill-0")) == SHARED["want"]
    node("prefill-1").signal(signal.SIGCONT)
    clean("decode-0", "prefill-0")
    nodes().wait_ready(2, 2, timeout=30)
    again()


def test_all_stop_cleanly():
    assert set(nodes().stop().values()) == {0}


run(globals())
