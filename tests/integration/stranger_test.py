"""It refuses well: peers that do not fit, strangers on every port, hostile HTTP, every order of starting.

Every test keeps a client asking meanwhile and looks afterwards that nobody else noticed: same processes, same links.
"""
import itertools
import os
import random
import re
import secrets
import socket
import threading
import time

from harness import all_blocks_back, chat, cluster, free_port, get, in_threads, request, run, tiny_model, tokens_of, wait_for

RNG = random.Random(7)
HERE = os.path.dirname(os.path.abspath(__file__))
LINK_CORPUS = os.path.join(os.path.dirname(HERE), "fuzz", "corpus", "link")


class Asking:
    """Asks for the same tokens again and again in a thread; leaving the block fails if any answer was not right."""

    def __init__(self, cl):
        self.port, self.stop, self.asked, self.wrong = cl.router.port("http"), False, 0, []
        self.want = tokens_of(self.port, "meanwhile", max_tokens=8, ignore_eos=True)
        self.thread = threading.Thread(target=self.loop)

    def loop(self):
        while not self.stop:
            try:
                got = tokens_of(self.port, "meanwhile", max_tokens=8, ignore_eos=True)
            except Exception as e:  # noqa: BLE001
                got = repr(e)
            self.asked += 1
            if got != self.want:
                self.wrong.append(got)
            time.sleep(0.005)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        if exc[0] is None:
            before = self.asked
            wait_for(lambda: self.asked >= before + 2, 30, "answers after the stranger's visit")
        self.stop = True
        self.thread.join()
        assert exc[0] is not None or not self.wrong, self.wrong[:3]


def nobody_noticed(cl):
    """The processes of a cluster live, the router lost no node, every block is free."""
    for p in [cl.router, *cl.nodes.values()]:
        assert p.alive(), (p.name, p.log()[-2000:])
    assert 'msg="session lost"' not in cl.router.log(), cl.router.log()[-2000:]
    for node in cl.nodes.values():
        all_blocks_back(cl, node)


# ---- peers that do not fit ----

def key_file(cl, name, line):
    path = os.path.join(cl.folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(line + "\n")
    os.chmod(path, 0o600)
    return path


def own_key(cl):
    with open(cl.key_file, encoding="utf-8") as f:
        return f.read().split()


def with_args(argv, **changes):
    """argv with the value of some flags replaced, or added."""
    argv = list(argv)
    for flag, value in changes.items():
        flag = "--" + flag.replace("_", "-")
        if flag in argv:
            argv[argv.index(flag) + 1] = value
        else:
            argv += [flag, value]
    return argv


MISFITS = [  # name, role, what differs, words of the router's reason, words of the node's
    ("secret", "decode", lambda cl: {"cluster_key_file": key_file(cl, "k1", own_key(cl)[0] + " " + secrets.token_hex(24))},
     "does not know the secret", "could not prove that it knows the cluster secret"),
    ("key-id", "prefill", lambda cl: {"cluster_key_file": key_file(cl, "k2", "other " + own_key(cl)[1])},
     "is not known to this node", "is not known to this node"),
    ("model", "decode", lambda cl: {"model": tiny_model(seed=2)}, "model differs: router", "model differs: router"),
    ("layers", "prefill", lambda cl: {"model": tiny_model(layers=2)}, "model differs: router", "model differs: router"),
    ("numerics", "decode", lambda cl: {"numerics": "f32"}, "differ", "differ"),
]


def reasons(process):
    return [line for line in process.log().splitlines() if 'msg="link refused"' in line or "does not fit" in line]


def check_misfit(cl, row):
    name, role, differs, at_router, at_node = row
    good = dict(cl.nodes)
    second = cl.make_router("router-" + name)
    url = f"tcp://127.0.0.1:{free_port()}"
    second.argv += ["--node", url]
    second.start()
    node = cl.node(role, "misfit-" + name, url)
    node.argv = with_args(node.argv, **differs(cl))
    try:
        # The first nodes of a router set layout and numerics for the others: these two are there before the third.
        wait_for(lambda: get(second.port("http"), "/health")[0] == 200, 30, "the second router")
        node.start()
        for process, words in ((second, at_router), (node, at_node)):
            wait_for(lambda p=process, w=words: any(w in line for line in reasons(p)), 20,
                     f"{process.name} to say '{words}': {process.log()[-1500:]}")
        for _ in range(4):
            assert chat(second.port("http"), max_tokens=3).status == 200
        listed = request(second.port("admin"), "GET", "/nodes").json()["nodes"]
        assert {n["name"] for n in listed if n["ready"]} == set(good), listed
        assert node.alive()
    finally:
        second.stop()
        node.stop()
        cl.nodes = good


def test_peers_that_do_not_fit_are_refused_with_a_reason_and_never_paired():
    with cluster() as cl, Asking(cl):
        for row in MISFITS:
            check_misfit(cl, row)
        nobody_noticed(cl)


def test_a_router_that_admits_several_numerics_still_never_mixes_them_in_a_pair():
    with cluster(router=["--no-strict-pairs"]) as cl:
        odd = cl.node("decode", "odd")
        odd.argv = with_args(odd.argv, numerics="f32")
        odd.start()
        cl.router.stop()
        cl.router = cl.make_router().start()
        cl.wait_ready(1, 2)
        for _ in range(6):
            assert chat(cl.router.port("http"), max_tokens=3).status == 200
        assert {r["decode"] for r in cl.admin("/requests")["finished"]} == {"decode-0"}


# ---- strangers on the ports of nodes ----

def corpus(name):
    with open(os.path.join(LINK_CORPUS, name), "rb") as f:
        return f.read()


def hello():
    """The frame of a well-formed HELLO."""
    raw = corpus("hello")
    return raw[raw.index(b"TLK1") - 24:] if b"TLK1" in raw else raw


def visits():
    """Bytes that a stranger sends, each on a connection of its own."""
    frame = hello()
    yield from (RNG.randbytes(n) for n in (1, 3, 4, 36, 1000, 70000))
    yield from (n.to_bytes(4, "little") + b"\0" * 64 for n in (0, 1, 35, 67585, 1 << 24, 0x7FFFFFFF, 0xFFFFFFFF))
    yield from (frame[:n] for n in (1, 4, 5, 20, len(frame) // 2, len(frame) - 1))
    yield from (frame, frame * 50, frame[:60] + RNG.randbytes(200))
    yield from (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\xff" * 4096)


def visit(port, data, hold):
    """Sends and leaves the connection open in `hold`."""
    s = socket.create_connection(("127.0.0.1", port), timeout=10)
    hold.append(s)
    try:
        s.sendall(data)
    except OSError:
        pass  # it has closed on us already, which is its right
    return s


def drip(port, data, seconds):
    """A byte every few milliseconds; the other end may close at any time."""
    s = socket.create_connection(("127.0.0.1", port), timeout=10)
    end = time.monotonic() + seconds
    try:
        for i in range(len(data)):
            if time.monotonic() > end:
                break
            s.sendall(data[i:i + 1])
            time.sleep(0.01)
    except OSError:
        pass
    s.close()


def haunt(ports):
    """Everything at once on each port: garbage, lies about lengths, halves, silence, drips, and a crowd."""
    hold = []
    drips = [threading.Thread(target=drip, args=(p, hello() * 4, 1.0)) for p in ports]
    for t in drips:
        t.start()
    for port in ports:
        for data in visits():
            visit(port, data, hold)
        for _ in range(100):
            visit(port, b"", hold)  # says nothing
    for t in drips:
        t.join()
    for i, s in enumerate(hold):
        if i % 3 == 0:  # leave by a reset
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()


def test_strangers_on_the_control_port_are_turned_away():
    with cluster(time_scale=1) as cl:
        with Asking(cl):
            haunt([n.port("control") for n in cl.nodes.values()])
        nobody_noticed(cl)
        second = cl.make_router("router-2").start()  # a router still gets in
        wait_for(lambda: get(second.port("http"), "/health")[0] == 200, 20, "another router")
        assert second.stop() == 0


def listening_ports(pid):
    """TCP ports on which a process listens, by /proc."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as f:
            for row in f.read().splitlines()[1:]:
                cells = row.split()
                if cells[3] == "0A" and cells[9] in inodes:
                    ports.add(int(cells[1].rsplit(":", 1)[1], 16))
    return ports


def test_strangers_on_the_data_port_are_survived():
    with cluster(time_scale=1, node=["--kv-transports", "tcp,self"]) as cl:
        ports = []
        for node in cl.nodes.values():
            known = {node.port("control"), node.port("admin")}
            ports += sorted(listening_ports(node.proc.pid) - known)
        assert len(ports) >= 2, ports  # UCX listens in each node
        with Asking(cl):
            haunt(ports)
        nobody_noticed(cl)
        record = cl.admin("/requests")["finished"][0]
        assert record["transport"] == "tcp", record


# ---- hostile HTTP ----

POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
NEXT = b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n"  # smuggled behind a bad request: must never be answered

HOSTILE = [  # bytes, status (0: any 4xx); the connection ends after it
    (b"GET /health HTTP/1.1\nHost: a\n\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\x00b\r\n\r\n", 400),
    (b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n", 400),
    (b"GET /health\r\n\r\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    (POST + b"Content-Length: +2\r\n\r\n{}", 400),
    (POST + b"Content-Length: 0x2\r\n\r\n{}", 400),
    (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n", 0),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n", 400),
    (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 0),
    (POST + b"Content-Length: 1073741824\r\n\r\n", 413),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 0),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"b" * 20000 + b"\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
]


def answer_to(port, data, timeout=30):
    """All that comes back until the other end closes."""
    s = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    out = b""
    try:
        s.sendall(data)
        while True:
            piece = s.recv(65536)
            if not piece:
                break
            out += piece
    except ConnectionError:
        pass
    finally:
        s.close()
    return out


def check_hostile(port, rows, http2=False):
    """http2: this port speaks it too, so that a preface is answered in it, and the connection still ends."""
    for data, status in rows:
        out = answer_to(port, data + NEXT)
        if http2 and data.startswith(b"PRI "):
            settings, goaway = out[3:4] == b"\x04", b"\x07\x00\x00\x00\x00\x00" in out
            assert settings and goaway and b"HTTP/1.1" not in out and b'"version"' not in out, out[:200]
            continue
        assert len(re.findall(rb"HTTP/1.1 \d\d\d ", out)) == 1, (data[:80], out)
        got = int(out.split()[1])
        assert 400 <= got < 500 and status in (0, got), (data[:80], status, out[:200])
        assert b'"version"' not in out, data[:80]


def slow_clients(port):
    """Connections that never finish: silent, half a head, half a body, a byte at a time."""
    hold = []
    for _ in range(40):
        visit(port, b"", hold)
        visit(port, b"GET /health HT", hold)
        visit(port, POST + b"Content-Length: 100\r\n\r\n{", hold)
        visit(port, POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", hold)
    return hold


def test_hostile_http_hurts_nobody_else():
    with cluster(time_scale=1) as cl:
        port = cl.router.port("http")
        with Asking(cl):
            hold = slow_clients(port)
            drips = [threading.Thread(target=drip, args=(port, NEXT[:-4] + b"\r\nX: " + b"y" * 400, 2.0)) for _ in range(4)]
            for t in drips:
                t.start()
            check_hostile(port, HOSTILE)
            for _ in range(20):  # ask for an answer and go without reading it
                visit(port, POST + b'Content-Length: 29\r\n\r\n{"prompt":"a","stream":true  }', hold)
            for t in drips:
                t.join()
            for s in hold:
                s.close()
        nobody_noticed(cl)
        live = cl.admin("/requests")["live"]
        wait_for(lambda: not cl.admin("/requests")["live"], 20, f"abandoned requests to end: {live}")


def test_a_slow_head_is_cut_off_while_others_are_served():
    with cluster(time_scale=1) as cl, Asking(cl):
        s = socket.create_connection(("127.0.0.1", cl.router.port("http")), timeout=60)
        s.sendall(b"GET /health HTTP/1.1\r\nHo")
        out = s.recv(4096)  # the head's deadline: 10 s
        assert out == b"" or b" 408 " in out.split(b"\r\n")[0], out
        s.close()


def test_hostile_http_on_the_admin_ports_hurts_nobody():
    with cluster(time_scale=1) as cl:
        with Asking(cl):
            hold = []
            for p in [cl.router, *cl.nodes.values()]:
                check_hostile(p.port("admin"), HOSTILE[:12], http2=True)
                assert b" 413 " in answer_to(p.port("admin"), POST + b"Content-Length: 1073741824\r\n\r\n")
                for method in (b"POST", b"DELETE"):
                    out = answer_to(p.port("admin"), method + b" /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    assert out.startswith(b"HTTP/1.1 405 "), out
                hold += slow_clients(p.port("admin"))[:200]
            for s in hold:
                s.close()
        nobody_noticed(cl)


# ---- orders of starting ----

def test_any_order_of_starting_works_and_each_may_restart():
    for order in itertools.permutations(("router", "prefill-0", "decode-0")):
        cl = cluster()
        urls = {n: f"tcp://127.0.0.1:{free_port()}" for n in ("prefill-0", "decode-0")}
        try:
            cl.router = None
            for i, name in enumerate(order):
                if name == "router":
                    cl.router = router_to(cl, urls.values()).start()
                    cl.router.ports()
                else:
                    cl.node(name.split("-")[0], name, urls[name]).start().ports()
                if cl.router is not None and i < 2:
                    assert get(cl.router.port("http"), "/health")[0] == 503
                    assert get(cl.router.port("http"), "/livez")[0] == 200
            cl.wait_ready(1, 1, timeout=60)
            want = tokens_of(cl.router.port("http"), "any order", max_tokens=6, ignore_eos=True)
            again = order[0]  # the one that has been there longest goes and comes back
            if again == "router":
                assert cl.router.stop() == 0
                cl.router = router_to(cl, urls.values()).start()
            else:
                cl.nodes[again].kill()
                cl.restart(again)
            cl.wait_ready(1, 1, timeout=60)
            wait_for(lambda: get(cl.router.port("http"), "/health")[0] == 200, 60, f"{again} back")
            assert tokens_of(cl.router.port("http"), "any order", max_tokens=6, ignore_eos=True) == want, order
        finally:
            cl.stop()


def test_requests_wait_while_the_only_nodes_link_is_down_and_its_successor_serves_them():
    """The dead node's port takes connections and says nothing: as the address of a deleted pod, from which nothing comes."""
    for name in ("prefill-0", "decode-0"):
        with cluster(time_scale=1) as cl:
            port = cl.router.port("http")
            want = tokens_of(port, "successor", max_tokens=6, ignore_eos=True)
            cl.nodes[name].kill()
            silent = socket.create_server(("127.0.0.1", int(cl.nodes[name].ports()["control"].rsplit(":", 1)[1])))

            def successor():
                try:
                    wait_for(lambda: [r["phase"] for r in cl.admin("/requests")["live"]] == ["queued"] * 3, 8, "requests to wait")
                    assert get(port, "/health")[0] == 503
                    assert "its link is down" in [n["why_not"] for n in cl.admin("/nodes")["nodes"]]
                finally:
                    silent.close()
                cl.restart(name)

            *got, _ = in_threads([lambda: tokens_of(port, "successor", max_tokens=6, ignore_eos=True)] * 3 + [successor])
            assert got == [want] * 3, got
            assert "attempt failed" not in cl.router.log()
            for node in cl.nodes.values():
                all_blocks_back(cl, node)


def router_to(cl, urls):
    """A router of this cluster that dials these addresses, whether or not anybody is there."""
    nodes, cl.nodes = cl.nodes, {}
    router = cl.make_router()
    cl.nodes = nodes
    for url in urls:
        router.argv += ["--node", url]
    return router


if __name__ == "__main__":
    run(globals())
