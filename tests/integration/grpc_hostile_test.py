"""Hostile HTTP/2 clients of raw frames against the router's gRPC port: whatever they do, other clients are served, no KV block
leaks, memory stays bounded. Standard library only.
"""
import socket
import struct
import time

from h2_frames import (CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST, SETTINGS, WINDOW,
                       Peer, block, frame, generate, head, until_end)
from harness import all_blocks_back, cluster, request, run, wait_for

CALM = 11
SHARED = None
MEMORY_MIB = 160  # that hostile clients may add, all together


def shared():
    global SHARED
    if SHARED is None:
        SHARED = cluster(prefill=1, decode=1).__enter__()
        SHARED.rss = rss(SHARED)
    return SHARED


def rss(cl):
    """Resident MiB of the router."""
    with open(f"/proc/{cl.router.proc.pid}/status", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1]) / 1024


def peer(settings=b""):
    return Peer(shared().router.port("grpc"), settings)


def cancel(stream):
    return frame(RST, 0, stream, struct.pack(">I", 8))


def unharmed():
    """Everybody else is served, every block is back, nothing of the attack is left."""
    cl = shared()
    a = request(cl.router.port("http"), "POST", "/v1/completions", {"prompt": "hello", "max_tokens": 4, "temperature": 0})
    assert a.status == 200, a.body
    with peer() as p:
        p.ask(1)
        assert any(kind == HEADERS and flags & END_STREAM and stream == 1 for kind, flags, stream, _ in until_end(p, 1))
    for node in cl.nodes.values():
        all_blocks_back(cl, node)
    wait_for(lambda: not cl.admin("/requests")["live"], 30, "the requests to end")
    assert rss(cl) - cl.rss < MEMORY_MIB, (rss(cl), cl.rss)


def test_floods_of_useless_frames_end_their_connection_only():
    floods = {
        "settings": frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)),
        "ping": frame(PING, 0, 0, b"12345678"),
        "priority": frame(PRIORITY, 0, 1001, b"\0\0\0\0\1"),
    }
    for name, one in floods.items():
        with peer() as p:
            for _ in range(200):
                if not p.send(one * 100):
                    break
            assert p.goaway() in (CALM, None), name
    unharmed()


def test_streams_opened_and_cancelled_at_once_are_bounded():
    with peer() as p:
        for i in range(20):
            burst = b"".join(frame(HEADERS, END_HEADERS, s, head()) + frame(DATA, END_STREAM, s, generate(tokens=500)) +
                             cancel(s) for s in range(1 + 400 * i, 1 + 400 * (i + 1), 2))
            if not p.send(burst):
                break
        assert p.goaway() in (CALM, None)
    unharmed()


def test_header_blocks_that_never_end_and_headers_too_large_are_refused():
    with peer() as p:
        p.send(frame(HEADERS, 0, 1, head()))
        for _ in range(1000):
            if not p.send(frame(CONTINUATION, 0, 1, block("x", "y" * 1000))):
                break
        p.goaway()
    with peer() as p:
        big = head("/x", *(["x-big", "v" * 7000] * 4))
        p.send(frame(HEADERS, END_STREAM, 1, big[:16000]) + frame(CONTINUATION, END_HEADERS, 1, big[16000:]))
        codes = [struct.unpack(">I", payload)[0] for kind, _, _, payload in until_end(p, 1) if kind == RST]
        assert codes == [CALM], codes
    unharmed()


def test_messages_too_large_are_refused_before_they_have_come():
    with peer() as p:
        p.send(frame(HEADERS, END_HEADERS, 1, head()) + frame(DATA, 0, 1, b"\0\xff\xff\xff\xff" + b"x" * 1000))
        assert any(stream == 1 and flags & END_STREAM for _, flags, stream, _ in until_end(p, 1))
    unharmed()


def test_requests_that_never_end_cost_little_and_answers_nobody_reads_are_cancelled():
    held = [peer() for _ in range(4)]
    for p in held:
        for s in range(1, 400, 2):
            p.send(frame(HEADERS, END_HEADERS, s, head()) + frame(DATA, 0, s, generate(tokens=500)[:7]))
    deaf = peer(struct.pack(">HI", 4, 0))  # windows of zero
    for s in range(1, 20, 2):
        deaf.ask(s, tokens=200)
    wait_for(lambda: len(shared().admin("/requests")["finished"]) > 0, 30, "the unread answers to be computed")
    for p in held + [deaf]:
        p.s.close()
    unharmed()


def test_a_client_that_goes_at_any_point_leaves_nothing():
    whole = frame(HEADERS, END_HEADERS, 1, head()) + frame(DATA, END_STREAM, 1, generate("the quick brown fox " * 10, 300))
    for cut in range(0, len(whole), 29):
        with peer() as p:
            p.send(whole[:cut])
    for wait_for_frames in range(1, 12):
        with peer() as p:
            p.send(whole)
            for n, _ in enumerate(until_end(p, 1)):
                if n == wait_for_frames:
                    break
    with peer() as p:
        for i, s in enumerate(range(1, 60, 2)):
            p.ask(s, tokens=300)
            time.sleep(0.001 * (i % 5))  # other points of the request's way, nothing depends on it
            p.send(cancel(s))
    unharmed()


def test_a_thousand_streams_of_one_connection_are_all_answered():
    with peer(struct.pack(">HI", 4, 1 << 20)) as p:
        p.send(frame(WINDOW, 0, 0, struct.pack(">I", 1 << 24)))
        for s in range(1, 2000, 2):
            p.ask(s, tokens=2)
        ended = set()
        for kind, flags, stream, _ in p.frames(120):
            if kind == RST or (kind in (HEADERS, DATA) and flags & END_STREAM):
                ended.add(stream)
            if len(ended) == 1000:
                break
        assert len(ended) == 1000
    unharmed()


def test_bytes_that_are_not_http2_are_closed():
    for noise in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\0" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
        with socket.create_connection(("127.0.0.1", shared().router.port("grpc")), 30) as s:
            s.sendall(noise)
            s.settimeout(30)
            try:
                while s.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    unharmed()


def test_the_router_stops_cleanly_afterwards():
    cl = shared()
    errors = [line for line in cl.router.log().splitlines() if "level=error" in line]
    assert not errors, errors[:5]
    assert set(cl.stop().values()) == {0}


run(globals())
