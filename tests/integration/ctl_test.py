"""tandemctl against a live tiny cluster: every format, every exit status, the doctor and the bench."""
import fcntl
import hashlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import termios
import threading
import time

from h2_frames import END_HEADERS, END_STREAM, HEADERS, SETTINGS, block, frame
from harness import BUILD, SCRATCH, Stream, cluster, free_port, get, issue, request, run, tiny_model, wait_for

CTL = os.path.join(BUILD, "ctl", "tandemctl")
OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
SHARED = cluster(prefill=1, decode=2).start()
PORT, ADMIN = SHARED.router.port("http"), SHARED.router.port("admin")
ROUTER = f"http://127.0.0.1:{ADMIN}"


def ctl(*args, router=ROUTER, status=OK, timeout=120):
    """(stdout, stderr) of one call, whose exit status must be `status`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    if router:
        env["TANDEM_ROUTER"] = router
    done = subprocess.run([CTL, *args], env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == status, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


# ---- a reader of the YAML that tandemctl writes: block mappings and sequences of scalars, strings quoted ----

def yaml_scalar(text):
    if text in ("{}", "[]"):
        return json.loads(text)
    assert re.fullmatch(r'"(\\.|[^"\\])*"|-?\d+(\.\d+)?(e[+-]?\d+)?|true|false|null', text), text
    return json.loads(text)


def yaml_block(lines, indent):
    """The value whose lines stand at `indent`; consumes them."""
    if lines[0][1].startswith("- "):
        out = []
        while lines and lines[0][0] == indent and lines[0][1].startswith("- "):
            lines[0] = (indent + 2, lines[0][1][2:])
            out.append(yaml_block(lines, indent + 2))
        return out
    m = re.match(r'("(?:\\.|[^"\\])*"|[a-z][a-z0-9_]*):(?: (.*))?$', lines[0][1])
    if not m:
        return yaml_scalar(lines.pop(0)[1])
    out = {}
    while lines and lines[0][0] == indent and not lines[0][1].startswith("- "):
        m = re.match(r'("(?:\\.|[^"\\])*"|[a-z][a-z0-9_]*):(?: (.*))?$', lines.pop(0)[1])
        key = json.loads(m.group(1)) if m.group(1).startswith('"') else m.group(1)
        assert key not in out, key
        out[key] = yaml_scalar(m.group(2)) if m.group(2) is not None else yaml_block(lines, lines[0][0])
    return out


def yaml(text):
    lines = [(len(line) - len(line.lstrip(" ")), line.lstrip(" ")) for line in text.splitlines()]
    value = yaml_block(lines, 0)
    assert not lines, lines
    return value


def ask(request_id, **fields):
    body = dict({"prompt": "hello world " * 10, "max_tokens": 8, "ignore_eos": True}, **fields)
    a = request(PORT, "POST", "/v1/completions", body, {"X-Request-ID": request_id})
    assert a.status == 200, a.body
    wait_for(lambda: any(r["request_id"] == request_id for r in SHARED.admin("/requests")["finished"]), 30, "its end")
    return a.json()


# ---- get ----

def test_get_nodes_shows_each_node_with_its_role():
    out, err = ctl("get", "nodes")
    assert err == ""
    head, *rows = out.splitlines()
    assert head.split() == ["NAME", "ROLE", "READY", "RUNNING", "QUEUED", "KV-USE", "EPOCH"]
    nodes = {r.split()[0]: r.split() for r in rows}
    assert set(nodes) == {"prefill-0", "decode-0", "decode-1"}
    for name, row in nodes.items():
        assert row[1] == name.split("-")[0] and row[2] == "yes", row
        assert row[5].endswith("%") and len(row[6]) == 16, row


def test_get_nodes_as_json_and_yaml_is_the_routers_document():
    served = SHARED.admin("/nodes")["nodes"]
    for doc in (json.loads(ctl("get", "nodes", "-o", "json")[0]), yaml(ctl("get", "nodes", "-oyaml")[0])):
        assert [n["name"] for n in doc["nodes"]] == [n["name"] for n in served]
        for node, want in zip(doc["nodes"], served):
            assert set(node) == set(want) and node["epoch"] == want["epoch"] and node["blocks"].keys() == want["blocks"].keys()
            assert type(node["ready"]) is bool and type(node["n_blocks"]) is int
    assert len(ctl("get", "nodes", "-o", "wide")[0].splitlines()[0].split()) > 10


def test_get_requests_shows_finished_ones_with_stage_times():
    for i in range(3):
        ask(f"ctl-{i}")
    wait_for(lambda: not SHARED.admin("/requests")["live"], 10, "nodes to let go of the last one")
    out, _ = ctl("get", "requests", "--limit", "2")
    assert out.startswith("no request is running\n\nFINISHED"), out
    rows = [line.split() for line in out.splitlines()[3:]]
    assert [r[0] for r in rows] == ["ctl-2", "ctl-1"] and all(r[1] == "length" for r in rows), rows
    for doc in (json.loads(ctl("get", "requests", "-o", "json")[0]), yaml(ctl("get", "requests", "-o", "yaml")[0])):
        record = next(r for r in doc["finished"] if r["request_id"] == "ctl-1")
        assert record["prefill_us"] > 0 and record["transport"] and record["output_tokens"] == 8
        assert doc["live"] == []


def test_get_transfers_shows_each_pair_with_what_it_moved():
    ask("ctl-moved")
    head, *rows = ctl("get", "transfers")[0].splitlines()
    assert head.split()[:4] == ["PREFILL-NODE", "DECODE-NODE", "BY", "REQUESTS"], head
    assert rows and all(r.split()[0] == "prefill-0" and r.split()[1].startswith("decode-") for r in rows), rows
    docs = [json.loads(ctl("get", "transfers", "-o", "json")[0]), yaml(ctl("get", "transfers", "-o", "yaml")[0])]
    for doc in docs:
        assert set(doc) == {"transfers"} and doc["transfers"][0]["bytes"] > 0 and doc["transfers"][0]["transport"], doc


def test_get_requests_shows_a_running_one():
    with cluster(node=["--fault", "step.pause=delay:us=50000"]) as cl:
        s = Stream(cl.router.port("http"), max_tokens=200, ignore_eos=True)
        next(s.events())
        router = f"http://127.0.0.1:{cl.router.port('admin')}"
        out, _ = ctl("get", "requests", router=router)
        head, row = out.splitlines()[:2]
        assert head.split()[:2] == ["RUNNING", "PHASE"] and row.split()[1] in ("prefill", "decode"), out
        nodes = json.loads(ctl("get", "nodes", "-ojson", router=router)[0])["nodes"]
        assert sum(n["inflight"] for n in nodes) >= 1
        out, _ = ctl("explain", row.split()[0], router=router)
        assert "still running" in out and "chosen" in out, out
        out, _ = ctl("describe", "request", row.split()[0], router=router)
        assert re.search(r"^Phase: +(prefill|decode)$", out, re.M) and "1. after" in out, out
        _, err = ctl("explain", row.split()[0], "--svg", "-", router=router, status=FAILED)
        assert "still running" in err, err
        s.close()
        p = subprocess.Popen([CTL, "generate", "hello", "--server", f"127.0.0.1:{cl.router.port('grpc')}", "--max-tokens", "400",
                              "--request-id", "left"], stdout=subprocess.PIPE)
        assert p.stdout.read(1)
        p.send_signal(signal.SIGINT)  # as Ctrl-C
        assert p.wait(30) == -signal.SIGINT

        def ended():
            return [r["code"] for r in cl.admin("/requests")["finished"] if r["request_id"] == "left"]
        wait_for(ended, 30, "the router to notice")
        assert ended() == ["cancelled"], ended()


def test_watch_asks_again_until_the_router_is_gone():
    with cluster() as cl:
        router = f"http://127.0.0.1:{cl.router.port('admin')}"
        env = dict(os.environ, TANDEM_ROUTER=router)
        p = subprocess.Popen([CTL, "get", "nodes", "--watch", "0.05", "-o", "yaml"], env=env, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        seen = 0
        for line in p.stdout:
            seen += line == "---\n"
            if seen == 3:
                break
        cl.router.stop()
        p.stdout.read()
        assert p.wait(30) == UNREACHABLE


# ---- explain, version ----

def test_explain_draws_the_stages_of_a_request():
    answer = ask("ctl-explained")
    for name in ("ctl-explained", answer["id"]):
        out, _ = ctl("explain", name)
        bars = {line[:14].strip(): line.split("|")[1] for line in out.splitlines() if "|" in line}
        always = {"tokenise", "router queue", "prefill queue", "prefill", "transfer", "exposed", "decode queue", "decode"}
        assert always <= set(bars) <= always | {"KV wait"}, bars  # the first byte of a pair may wait for its connection
        assert "#" in bars["prefill"] and "#" in bars["decode"] and len(set(map(len, bars.values()))) == 1
        assert "tokens/s); total" in out
        assert "lowest predicted completion of 2 pairs" in out
        rows = [line.split() for line in out.splitlines() if line.startswith("prefill-0 ")]
        assert {r[1] for r in rows} == {"decode-0", "decode-1"} and rows[0][-1] == "chosen", rows
        assert re.search(r"later|as good", " ".join(rows[1])), rows[1]
    record = json.loads(ctl("explain", "ctl-explained", "-o", "json")[0])
    assert record == SHARED.admin("/debug/request/ctl-explained") and list(record)[-1] == "tries", record
    assert record["request_id"] == "ctl-explained"
    pairs = record["tries"][0]["candidates"]
    assert [c["chosen"] for c in pairs] == [True, False] and pairs[0]["score_us"] <= pairs[1]["score_us"]
    assert yaml(ctl("explain", "ctl-explained", "-o", "yaml")[0]) == record


def test_explain_names_the_attempt_that_failed_and_where():
    with cluster(prefill=2, decode=1, prefill_args=["--fault", "step.pause=delay:us=300000"],
                 router=["--request-timeout", "30"]) as cl:
        router = f"http://127.0.0.1:{cl.router.port('admin')}"
        s = Stream(cl.router.port("http"), max_tokens=4, ignore_eos=True)

        def placed():
            live = cl.admin("/requests")["live"]
            return live[0]["prefill"] if live and live[0]["phase"] == "prefill" else None
        wait_for(placed, 30, "the request to be placed")
        dead = placed()
        cl.nodes[dead].kill()
        assert list(s.events()) and s.done
        wait_for(lambda: cl.admin("/requests")["finished"], 30, "its end")
        name = cl.admin("/requests")["finished"][0]["request_id"]
        out, _ = ctl("explain", name, router=router)
        lost = next(line for line in out.splitlines() if line.startswith("try 1, lost"))
        assert "x" in lost.split("|")[1] and re.search(r"failed after .*: node_lost", out), out
        assert out.count("lowest predicted completion") == 2 and dead in out, out
        out, _ = ctl("describe", "request", name, router=router)
        assert re.search(rf"1\. after .* on {dead} and decode-0.*failed after .*: node_lost", out), out


def test_explain_writes_a_picture():
    from xml.etree import ElementTree
    ask("ctl-picture")
    path = os.path.join(tempfile.mkdtemp(dir=SCRATCH), "x.svg")
    out, _ = ctl("explain", "ctl-picture", "--svg", path)
    assert "tokens/s); total" in out
    svg = ElementTree.parse(path).getroot()
    texts = ["".join(t.itertext()) for t in svg.iter("{http://www.w3.org/2000/svg}text")]
    for want in ("prefill", "decode", "transfer", "Request ctl-picture", "computes"):
        assert want in texts, texts
    assert any(re.fullmatch(r"\d+ (us|ms|s)", t) for t in texts), texts
    only, _ = ctl("explain", "ctl-picture", "--svg", "-")
    ElementTree.fromstring(only)
    ctl("explain", "ctl-picture", "--svg", "/nonexistent/x.svg", status=FAILED)


# ---- describe, drain ----

def test_describe_node_shows_its_pool_and_transfers():
    ask("ctl-described")
    out, _ = ctl("describe", "node", "prefill-0")
    for want in (r"^Name: +prefill-0$", r"^State: +ready$", r"^  free +\d+ +\d+\.\d %$", r"^prefill-0 +decode-\d +\w+ +\d+ "):
        assert re.search(want, out, re.M), (want, out)
    node = json.loads(ctl("describe", "node", "prefill-0", "-o", "json")[0])
    assert node["name"] == "prefill-0" and node["numerics"] and len(node["layout_id"]) == 16
    assert yaml(ctl("describe", "node", node["epoch"], "-o", "yaml")[0])["admin"].startswith("http://")
    _, err = ctl("describe", "node", "nobody", status=FAILED)
    assert "no node nobody" in err, err


def test_drain_lets_running_requests_finish_and_places_nothing_new():
    with cluster(prefill=1, decode=2, decode_args=["--fault", "step.pause=delay:us=30000"]) as cl:
        router = f"http://127.0.0.1:{cl.router.port('admin')}"
        streams = [Stream(cl.router.port("http"), max_tokens=60, ignore_eos=True) for _ in range(4)]
        events = [s.events() for s in streams]
        for e in events:
            next(e)
        busy = [r["decode"] for r in cl.admin("/requests")["live"]]
        assert set(busy) == {"decode-0", "decode-1"}, busy
        out, _ = ctl("drain", "decode-0", "--why", "upgrade", router=router)
        assert re.match(r"decode-0 is draining: [1-9]\d* requests left$", out), out
        _, err = ctl("drain", "decode-0", "--wait", "--wait-timeout", "0.1", router=router, status=FAILED)
        for i in range(3):
            a = request(cl.router.port("http"), "POST", "/v1/completions", {"prompt": "hi", "max_tokens": 2},
                        {"X-Request-ID": f"after-{i}"})
            assert a.status == 200, a.body
        out, _ = ctl("drain", "decode-0", "--wait", router=router)
        assert out == "decode-0 is drained: nothing runs there\n", out
        for s, e in zip(streams, events):
            assert list(e) and s.done
        ended = {r["request_id"]: r for r in cl.admin("/requests")["finished"]}
        assert all(ended[f"after-{i}"]["decode"] == "decode-1" for i in range(3)), ended
        assert all(r["code"] == "ok" and r["attempts"] == 1 for r in ended.values())
        assert get(cl.nodes["decode-0"].port("admin"), "/readyz")[0] == 503 and cl.nodes["decode-0"].alive()
        assert "drained" in ctl("describe", "node", "decode-0", router=router)[0]
        out, _ = ctl("drain", "decode-0", "--undrain", "--wait", "-o", "json", router=router)
        assert json.loads(out)["draining"] is False and get(cl.nodes["decode-0"].port("admin"), "/readyz")[0] == 200
        node = cl.nodes["decode-1"]
        ctl("drain", "decode-1", "--wait", router=router)
        assert node.stop() == 0
        wait_for(lambda: len(cl.admin("/nodes")["nodes"]) == 2, 30, "the router to part from it")
        _, err = ctl("drain", "decode-1", router=router, status=FAILED)
        assert "no node of this name" in err, err


def test_watch_tells_events_as_they_happen():
    with cluster(prefill=1, decode=2) as cl:
        router = f"http://127.0.0.1:{cl.router.port('admin')}"
        watches = [subprocess.Popen([CTL, "watch", *args, "--router", router], stdout=subprocess.PIPE, text=True,
                                    stderr=subprocess.PIPE)
                   for args in (["--kinds", "node.drain", "--kinds", "node.undrain", "--count", "2", "-o", "json"], [])]
        stop = threading.Event()

        def drain_again_and_again():  # a watch hears of what happens from its call on
            while not stop.is_set():
                ctl("drain", "decode-0", "--why", "seen", router=router)
                ctl("drain", "decode-0", "--undrain", router=router)
        t = threading.Thread(target=drain_again_and_again)
        t.start()
        out, _ = watches[0].communicate(timeout=60)
        line = watches[1].stdout.readline()
        stop.set()
        t.join()
        events = [json.loads(e) for e in out.splitlines()]
        assert len(events) == 2 and {e["kind"] for e in events} == {"node.drain", "node.undrain"}, events
        assert all(e["node"] == "decode-0" and e["unix_us"] > 0 for e in events) and watches[0].returncode == 0
        assert next(e for e in events if e["kind"] == "node.drain")["text"] == "seen", events
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  node\.(un)?drain  decode-0", line), line
        _, err = ctl("watch", "--kinds", "node.up,no.such", router=router, status=FAILED)
        assert "kinds are at most" in err, err
        cl.router.kill()
        _, err = watches[1].communicate(timeout=60)
        assert watches[1].returncode == UNREACHABLE and "cannot reach" in err, err
    ctl("watch", "--router", f"127.0.0.1:{free_port()}", status=UNREACHABLE)


def test_watch_gives_a_silent_server_up_after_its_keepalive():
    with socket.socket() as silent:  # it takes connections and never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        _, err = ctl("watch", "--router", f"127.0.0.1:{silent.getsockname()[1]}", "--keepalive", "0.1", status=UNREACHABLE,
                     timeout=30)
        assert "silent" in err, err


# ---- generate ----

def test_generate_answers_like_the_http_api():
    server = ["--server", f"127.0.0.1:{SHARED.router.port('grpc')}", "--temperature", "0", "--max-tokens", "6"]
    prompt = "hello world"
    want = request(PORT, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 6, "temperature": 0}).json()
    text = want["choices"][0]["text"]
    out, err = ctl("generate", prompt, *server, "--stats")
    assert out == text + "\n" and "tokens (" in err and "ended by length" in err, (out, err)
    doc = json.loads(ctl("generate", prompt, *server, "-o", "json", "--request-id", "ctl-generated")[0])
    assert doc["text"] == text and doc["finish_reason"] == "length" and len(doc["token_ids"]) == 6, doc
    assert doc["usage"]["completion_tokens"] == 6 and 0 < doc["first_token_us"] <= doc["total_us"]
    assert yaml(ctl("generate", prompt, *server, "-o", "yaml")[0])["text"] == text
    wait_for(lambda: any(r["request_id"] == "ctl-generated" for r in SHARED.admin("/requests")["finished"]), 30, "its end")
    done = subprocess.run([CTL, "generate", "-", *server], input=prompt, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == text + "\n"
    chat = request(PORT, "POST", "/v1/chat/completions",
                   {"messages": [{"role": "user", "content": prompt}], "max_tokens": 6, "temperature": 0}).json()
    assert ctl("generate", prompt, "--chat", *server)[0] == chat["choices"][0]["message"]["content"] + "\n"


def test_generate_wants_an_end_of_the_answer():
    head = block(":status", "200", "content-type", "application/grpc")
    said = frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, head) + \
        frame(HEADERS, END_HEADERS | END_STREAM, 1, block("grpc-status", "0"))

    def answer(listening):
        with listening.accept()[0] as s:
            s.sendall(said)
            while s.recv(65536):  # until the client has gone
                pass

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        t = threading.Thread(target=answer, args=(listening,))
        t.start()
        _, err = ctl("generate", "x", "--server", f"127.0.0.1:{listening.getsockname()[1]}", status=FAILED)
        t.join()
    assert "without an end" in err, err


def test_generate_tells_scripts_how_it_went():
    server = ["--server", f"127.0.0.1:{SHARED.router.port('grpc')}"]
    _, err = ctl("generate", "x", *server, "--model", "no-such", status=FAILED)
    assert "model_not_found" in err, err
    _, err = ctl("generate", "x", "--server", f"127.0.0.1:{free_port()}", status=UNREACHABLE)
    ctl("generate", "x", "--server", f"127.0.0.1:{PORT}", status=FAILED)  # HTTP only
    ctl("generate", "x", *server, "--api-key-file", "/no/such", status=USAGE)
    ctl("generate", "x", "--server", "nowhere", status=USAGE)
    ctl("generate", *server, status=USAGE)


def test_generate_shows_its_key_by_tls():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    for name, ca in (("ca", None), ("server", "ca"), ("friend", "ca")):
        issue(folder, name, ca)
    for name, text in (("keys", "alice " + hashlib.sha256(b"secret").hexdigest() + " team-a 0 0 0 0\n"), ("key", "secret\n"),
                       ("wrong", "guess\n")):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    at = os.path.join(folder, "")
    with cluster(router=["--tls-cert", at + "server.pem", "--tls-key", at + "server.key", "--tls-client-ca", at + "ca.pem",
                         "--api-key-file", at + "keys"]) as cl:
        server = ["--server", f"127.0.0.1:{cl.router.port('grpc')}", "--max-tokens", "4", "--tls-ca", at + "ca.pem"]
        friend = server + ["--tls-cert", at + "friend.pem", "--tls-key", at + "friend.key"]
        assert ctl("generate", "hello", *friend, "--api-key-file", at + "key")[0]
        _, err = ctl("generate", "hello", *friend, "--api-key-file", at + "wrong", status=FAILED)
        assert "invalid_api_key" in err, err
        ctl("generate", "hello", *server, "--api-key-file", at + "key", status=UNREACHABLE)  # shows no certificate


def test_explain_says_what_it_does_not_know():
    _, err = ctl("explain", "never-seen", status=FAILED)
    assert "remembers no request never-seen" in err, err
    ctl("explain", "bad id", status=USAGE)
    ctl("explain", status=USAGE)


def test_version_names_both_sides():
    served = request(PORT, "GET", "/version").json()["version"]
    out, _ = ctl("version")
    assert out.startswith(f"tandemctl {served}") and f"router    {served}" in out, out
    doc = yaml(ctl("version", "-o", "yaml")[0])
    assert doc["tandemctl"] == doc["router"] == served
    assert "router" not in ctl("version", "--client")[0]


# ---- top ----

class Terminal:
    """tandemctl on a pseudo terminal of 24 rows and 80 columns."""

    def __init__(self, *args, router=ROUTER):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            os.execve(CTL, [CTL, *args], dict(os.environ, TANDEM_ROUTER=router, TERM="xterm"))
        self.out = b""

    def read(self, seconds=0.1):
        end = time.monotonic() + seconds
        while select.select([self.fd], [], [], max(end - time.monotonic(), 0))[0]:
            try:
                got = os.read(self.fd, 65536)
            except OSError:  # the other end is closed
                return
            if not got:
                return
            self.out += got

    def until(self, want, what):
        def there():
            self.read()
            return want in self.out
        wait_for(there, 20, what)

    def key(self, text):
        self.out = b""
        os.write(self.fd, text)

    def end(self):
        """Exit status; the screen was given back."""
        ended = (0, 0)
        while ended[0] == 0:  # reading all the while: a full terminal would hold it up
            self.read(0.02)
            ended = os.waitpid(self.pid, os.WNOHANG)
        status = ended[1]
        self.read()
        assert self.out.endswith(b"\x1b[0m\x1b[?25h\x1b[?1049l"), self.out[-80:]
        os.close(self.fd)
        return status


def test_top_prints_one_page_on_a_pipe():
    ask("ctl-top")
    out, err = ctl("top", "--once")
    assert err == "" and "\x1b" not in out
    for want in ("requests  ", "first token  ", "NODE", "prefill-0", "decode-1", "TRANSFER", " > "):
        assert want in out, (want, out)
    assert all(len(line) <= 120 for line in out.splitlines())
    doc = json.loads(ctl("top", "-o", "json")[0])
    assert len(doc["nodes"]) == 3 and doc["router"]["model"] == "tiny" and doc["transfers"][0]["bytes"] > 0
    assert set(yaml(ctl("top", "-o", "yaml")[0])) == set(doc)
    p = subprocess.Popen([CTL, "top", "--every", "0.1"], env=dict(os.environ, TANDEM_ROUTER=ROUTER), text=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pages = 0
    for line in p.stdout:
        pages += line.startswith("NODE ")
        if pages == 3:
            break
    p.stdout.close()
    assert p.wait(30) != 0  # nobody reads any more


def test_top_draws_on_a_terminal_and_gives_it_back():
    t = Terminal("top", "--every", "0.2")
    t.until(b"q quit", "the screen")
    assert t.out.startswith(b"\x1b[?1049h") and b"prefill-0" in t.out
    screen = re.sub(rb"\x1b\[[?0-9;]*[A-Za-z]", b"\n", t.out).replace(b"\r", b"").split(b"\n")
    assert max(map(len, screen)) <= 80, max(screen, key=len)
    t.key(b"p")
    t.until(b"paused", "the pause")
    fcntl.ioctl(t.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 40, 0, 0))
    os.kill(t.pid, signal.SIGWINCH)
    t.out = b""
    t.until(b"\x1b[J", "a smaller screen")
    t.key(b"q")
    assert t.end() == 0
    for signo, status in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, 0)):
        t = Terminal("top")
        t.until(b"NODE", "the screen")
        os.kill(t.pid, signo)
        assert t.end() == status


def test_top_outlives_its_router():
    with cluster() as cl:
        t = Terminal("top", "--every", "0.1", router=f"http://127.0.0.1:{cl.router.port('admin')}")
        t.until(b"ready", "the screen")
        admin = cl.router.port("admin")
        cl.router.stop()
        t.until(b"does not answer", "the router's absence to be said")
        argv = cl.router.argv
        argv[argv.index("--admin-port") + 1] = str(admin)
        cl.router.start()
        t.out = b""

        def back():
            t.out = b""
            t.read(0.3)
            return b"does not" not in t.out and b": ready" in t.out
        wait_for(back, 30, "the new router")
        t.key(b"q")
        assert t.end() == 0


# ---- TLS on admin ports ----

class Secured:
    """A cluster whose admin ports speak TLS and ask operators for a certificate."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(dir=SCRATCH)
        for name, ca in (("ca", None), ("server", "ca"), ("renewed", "ca"), ("operator", "ca"), ("stranger", None)):
            issue(self.folder, name, ca)
        self.put("server")
        args = ["--admin-tls-cert", self.at("live.pem"), "--admin-tls-key", self.at("live.key"), "--admin-tls-client-ca",
                self.at("ca.pem")]
        self.cl = cluster(router=args, node=args)
        self.trust = ["--tls-ca", self.at("ca.pem")]
        self.operator = self.trust + ["--tls-cert", self.at("operator.pem"), "--tls-key", self.at("operator.key")]

    def at(self, name):
        return os.path.join(self.folder, name)

    def put(self, name):
        for end in (".key", ".pem"):
            os.replace(shutil.copy(self.at(name + end), self.at("new")), self.at("live" + end))

    def __enter__(self):
        self.cl.start(wait=False)
        wait_for(lambda: get(self.cl.router.port("http"), "/readyz")[0] == 200, 60, "the cluster")
        self.router = f"https://127.0.0.1:{self.cl.router.port('admin')}"
        return self

    def __exit__(self, *exc):
        self.cl.stop()

    def get(self, process, path, name=None):
        """Status of a GET from the admin port, as `name` or nobody; and the certificate that was shown."""
        context = ssl.create_default_context(cafile=self.at("ca.pem"))
        if name:
            context.load_cert_chain(self.at(name + ".pem"), self.at(name + ".key"))
        context.set_alpn_protocols(["h2", "http/1.1"])  # as browsers do
        with socket.create_connection(("127.0.0.1", process.port("admin")), 30) as raw, \
                context.wrap_socket(raw, server_hostname="127.0.0.1") as s:
            assert s.selected_alpn_protocol() == "http/1.1"
            s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return int(s.recv(65536).split(b" ")[1]), s.getpeercert(True)


def test_admin_ports_speak_tls_and_ask_operators_for_a_certificate():
    with Secured() as c:
        router, node = c.router, f"127.0.0.1:{c.cl.nodes['decode-0'].port('admin')}"
        out, _ = ctl("get", "nodes", *c.operator, router=router)
        assert "prefill-0" in out and "decode-0" in out, out
        assert "decode-0" in ctl("get", "nodes", *c.operator, router=router.replace("https://", ""))[0]
        assert "decode-0" in ctl("top", "--once", *c.operator, router=router)[0]
        assert "router " in ctl("version", *c.operator, router=router)[0]
        _, err = ctl("get", "nodes", *c.trust, router=router, status=FAILED)
        assert "show a client certificate" in err, err
        _, err = ctl("get", "nodes", router=router, status=UNREACHABLE)
        assert "not trusted" in err, err
        _, err = ctl("get", "nodes", *c.operator, "--tls-server-name", "other", router=router, status=UNREACHABLE)
        assert "another name" in err, err
        stranger = c.trust + ["--tls-cert", c.at("stranger.pem"), "--tls-key", c.at("stranger.key")]
        ctl("get", "nodes", *stranger, router=router, status=UNREACHABLE)
        ctl("get", "nodes", router=router.replace("https", "http"), status=UNREACHABLE)
        _, err = ctl("get", "nodes", "--tls-ca", "/none.pem", router=router, status=USAGE)
        assert "/none.pem" in err, err
        for address in (node, router):  # probes show nothing
            assert ctl("health", address, *c.trust)[0] == "SERVING\n"
        assert ctl("health", f"https://{node}", *c.operator)[0] == "SERVING\n"
        ctl("health", node, status=UNREACHABLE)
        for process in (c.cl.router, c.cl.nodes["prefill-0"]):
            assert c.get(process, "/readyz")[0] == c.get(process, "/livez")[0] == 200
            assert c.get(process, "/metrics")[0] == 403 and c.get(process, "/metrics", "operator")[0] == 200
            assert c.get(process, "/nothing")[0] == 403
        checks = json.loads(ctl("doctor", "--cluster", "--no-measure", "-o", "json", *c.operator, router=router)[0])["checks"]
        clock = next(k for k in checks if k["check"] == "clock of decode-0")
        assert clock["verdict"] in ("ok", "warn"), clock


def test_admin_ports_take_a_renewed_certificate():
    with Secured() as c:
        processes = [c.cl.router, *c.cl.nodes.values()]
        before = [c.get(p, "/livez")[1] for p in processes]
        c.put("renewed")
        wait_for(lambda: all(c.get(p, "/livez")[1] != b for p, b in zip(processes, before)), 30, "the renewed certificate")
        assert "prefill-0" in ctl("get", "nodes", *c.operator, router=c.router)[0]
        with open(c.at("live.pem"), "w", encoding="utf-8") as f:
            f.write("not a certificate")
        for p in processes:
            p.signal(signal.SIGHUP)
            wait_for(lambda p=p: "cannot use the TLS files" in p.log(), 30, "a complaint")
            assert "option=--admin-tls-cert" in p.log()
        assert "prefill-0" in ctl("get", "nodes", *c.operator, router=c.router)[0]


# ---- exit statuses ----

def test_an_unreachable_router_is_3():
    nobody = f"http://127.0.0.1:{free_port()}"
    for args in (["get", "nodes"], ["get", "requests", "-o", "json"], ["explain", "x"]):
        out, err = ctl(*args, "--router", nobody, status=UNREACHABLE)
        assert out == "" and "cannot reach a router" in err and "--router" in err, err
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        ctl("get", "nodes", "--router", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2", status=UNREACHABLE)
    out, err = ctl("version", "--router", nobody)
    assert "cannot reach" in err and out.startswith("tandemctl")


def test_a_port_that_is_no_admin_port_is_1():
    _, err = ctl("get", "nodes", "--router", f"http://127.0.0.1:{PORT}", status=FAILED)
    assert "admin port" in err, err
    node = SHARED.nodes["decode-0"].port("admin")
    ctl("get", "requests", "--router", f"http://127.0.0.1:{node}", status=FAILED)


def test_wrong_command_lines_are_2():
    for args in ([], ["get"], ["get", "pods"], ["nonsense"], ["get", "nodes", "extra"], ["get", "nodes", "-o", "xml"],
                 ["get", "nodes", "--rooter", "x"], ["get", "nodes", "--router", "ftp://x"], ["bench", "engine"],
                 ["get", "requests", "--limit", "1025"], ["doctor", "--measure-megabytes", "0"]):
        out, err = ctl(*args, status=USAGE)
        assert out == "" and err, args
    assert "did you mean router?" in ctl("get", "nodes", "--rooter", "x", status=USAGE)[1]


def test_an_answer_that_cannot_be_written_is_1():
    for args in (["get", "nodes"], ["get", "nodes", "-o", "json"], ["version"], ["completion", "bash"], ["top", "--once"],
                 ["doctor", "--cluster", "--no-measure"], ["--help"]):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([CTL, *args, *([] if args[0] in ("completion", "--help") else ["--router", ROUTER])],
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode == 1, (args, done)
        assert "could not be written" in done.stderr, (args, done.stderr)


def test_every_command_has_help():
    out, _ = ctl("--help")
    commands = [line[2:28].split() for line in out.splitlines() if line.startswith("  ")]
    assert ["get", "nodes"] in commands and ["doctor"] in commands and ["bench", "engine"] in commands
    for words in commands:
        words = [w for w in words if w.islower()]
        if words[0] == "completion":
            continue
        text = ctl(*words, "--help")[0]
        assert f"usage: tandemctl {' '.join(words)}" in text and "Exit status: 0 done" in text


COMPLETIONS = ((["ge"], {"get", "generate"}), (["gen"], {"generate"}), (["get", ""], {"nodes", "requests", "transfers"}),
               (["get", "nodes", "--ou"], {"--output"}),
               (["get", "nodes", "-o", "y"], {"yaml"}), (["bench", "engine", "--isa", "avx"], {"avx2", "avx512"}),
               (["completion", ""], {"bash", "zsh", "fish"}), (["describe", "node", "pre"], {"prefill-0"}),
               (["drain", "prefill-0", "--un"], {"--undrain"}))


def shell(*argv):
    env = dict(os.environ, TANDEM_ROUTER=ROUTER, PATH=f"{os.path.dirname(CTL)}:{os.environ['PATH']}", LC_ALL="C.UTF-8")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "", done.stderr
    return done.stdout


def test_bash_completes_commands_flags_values_and_nodes():
    script, _ = ctl("completion", "bash")
    ctl("completion", "tcsh", status=USAGE)
    for line, want in (*COMPLETIONS, (["doctor", "--model", "x"], set()), (["drain", "--why", "x"], set())):
        words = " ".join(f"'{w}'" for w in ["tandemctl", *line])
        out = shell("bash", "-c", f"{script}\nCOMP_WORDS=({words}); COMP_CWORD={len(line)}; _tandemctl; "
                    'printf "%s\\n" "${COMPREPLY[@]}"')
        assert set(out.split()) == want, (line, out)


def test_zsh_completes_the_same():
    if shutil.which("zsh") is None:
        print("# zsh is not installed; ./dev check shells installs it")
        return
    script, _ = ctl("completion", "zsh")
    for line, want in COMPLETIONS:
        words = " ".join(f"'{w}'" for w in ["tandemctl", *line])
        out = shell("zsh", "-f", "-c", f"compadd() {{ shift; print -l -- $@ }}\n{script}\nwords=({words}); "
                    f"CURRENT={len(line) + 1}; _tandemctl")
        assert {w for w in out.split() if w.startswith(line[-1])} == want, (line, out)
    out = shell("zsh", "-f", "-c", f"_files() {{ print files }}\n{script}\nwords=(tandemctl doctor --model x); CURRENT=4; "
                "_tandemctl")
    assert out == "files\n", out


def test_fish_completes_the_same():
    if shutil.which("fish") is None:
        print("# fish is not installed; ./dev check shells installs it")
        return
    script = os.path.join(tempfile.mkdtemp(dir=SCRATCH), "tandemctl.fish")
    with open(script, "w", encoding="utf-8") as f:
        f.write(ctl("completion", "fish")[0])
    for line, want in COMPLETIONS:
        out = shell("fish", "--no-config", "-c", f"source {script}; complete -C 'tandemctl {' '.join(line)}'")
        assert {w.split("\t")[0] for w in out.splitlines()} == want, (line, out)


# ---- doctor, bench ----

def test_the_doctor_passes_a_tiny_model_and_measures_the_transports():
    out, _ = ctl("doctor", "--model", tiny_model(), "--json", "--listen", "127.0.0.1:0", "--measure-megabytes", "16")
    doc = json.loads(out)
    checks = {c["check"]: c for c in doc["checks"]}
    assert doc["ok"] is True
    for name in ("model file", "architecture", "tokenizer", "chat template", "port 127.0.0.1:0"):
        assert checks[name]["verdict"] == "ok", checks[name]
    for name in ("ucx sm", "ucx cma", "ucx tcp", "ucx default"):
        assert checks[name]["gb_per_s"] > 0 and checks[name]["one_way_us"] > 0, checks[name]
    assert "tcp" in checks["ucx tcp"]["detail"] and "shm" in checks["ucx sm"]["detail"]
    assert checks["cpu"]["verdict"] in ("ok", "warn") and checks["memory"]["available_bytes"] > 0
    for c in doc["checks"]:
        assert c["detail"] and (c["verdict"] in ("ok", "skip")) == (c["remedy"] == ""), c


def test_the_doctor_fails_with_a_remedy_for_what_is_wrong():
    bad = os.path.join(tempfile.mkdtemp(dir=SCRATCH), "bad.gguf")
    with open(tiny_model(), "rb") as f, open(bad, "wb") as g:
        g.write(f.read()[:5000])
    out, err = ctl("doctor", "--model", bad, "--no-measure", "--listen", f"127.0.0.1:{PORT}", status=FAILED)
    lines = out.splitlines()
    for check, remedy in (("model file", "SHA-256"), (f"port 127.0.0.1:{PORT}", "ss -ltnp")):
        at = next(i for i, line in enumerate(lines) if line.startswith("FAIL") and check in line)
        assert "-> " in lines[at + 1] and remedy in lines[at + 1], lines[at + 1]
    assert f"in use by tandem-router (pid {SHARED.router.proc.pid}): a cluster runs here" in out, out
    assert lines[-1].endswith("2 failed") and err == "", (lines[-1], err)
    out, _ = ctl("doctor", "--kv-device", "nosuch0", "--kv-transports", "tcp", "--listen", "127.0.0.1:0", status=FAILED)
    assert "no such device" in out and "--kv-device" in out, out


def test_the_doctor_examines_a_cluster_and_every_pair():
    for args, probed in (((), True), (("--no-measure",), False)):
        doc = json.loads(ctl("doctor", "--cluster", "-o", "json", *args)[0])
        checks = {c["check"]: c for c in doc["checks"]}
        assert doc["ok"] is True, doc
        for name in ("router version", "node versions", "KV layouts", "numerics", "KV pool of decode-1", "clock of prefill-0",
                     "prefill-0 > decode-0", "prefill-0 > decode-1"):
            assert checks[name]["verdict"] in ("ok", "warn") or not probed, checks[name]
        assert abs(checks["clock of decode-0"]["offset_us"]) < 1e6
        if probed:
            for d in ("decode-0", "decode-1"):
                pair = checks[f"prefill-0 > {d}"]
                assert pair["kv_bytes"] > 100000 and "first token after" in pair["detail"], pair
                assert pair.get("bytes_per_s", 1) > 0, pair
                link = checks[f"link prefill-0 > {d}"]
                assert link["transport"] == "shm" and link["bytes"] == pair["kv_bytes"] and link["bytes_per_s"] > 0, link
                assert link["kv_bytes_per_token"] == link["bytes"] / 128 and link["prompt_tokens"] == 2048, link
    assert not [r for r in SHARED.admin("/requests")["finished"] if r["request_id"] == "tandem-probe"]
    with cluster(prefill=1, decode=2) as cl:
        router = f"http://127.0.0.1:{cl.router.port('admin')}"
        ctl("drain", "decode-0", router=router)
        out, _ = ctl("doctor", "--cluster", router=router)
        assert "WARN  decode nodes" in out and "prefill-0 > decode-1" in out and "> decode-0" not in out, out
        ctl("drain", "decode-1", router=router)
        out, _ = ctl("doctor", "--cluster", router=router, status=FAILED)
        assert "FAIL  decode nodes" in out and "FAIL  router ready" in out, out
    ctl("doctor", "--cluster", router=f"http://127.0.0.1:{free_port()}", status=UNREACHABLE)


def test_the_bench_measures_every_case():
    out, err = ctl("bench", "engine", "--model", tiny_model(), "--threads", "1", "--reps", "1", "--json")
    doc = json.loads(out)
    assert doc["cpu"] and doc["threads"] == 1 and doc["reps"] == 1
    assert [c["name"] for c in doc["cases"]] == ["prefill_512", "decode_ctx64", "decode_ctx1000", "streams_16"]
    assert all(c["median"] > 0 for c in doc["cases"]), doc
    assert "measuring" in err
    lines, _ = ctl("bench", "engine", "--model", tiny_model(), "--threads", "1", "--reps", "1")
    assert "cpu: " in lines and "decode_ctx1000" in lines
    ctl("bench", "engine", "--model", "/nonexistent", status=FAILED)


def test_the_shared_cluster_logged_nothing_unexpected():
    from harness import unexpected_lines
    for p in [SHARED.router, *SHARED.nodes.values()]:
        bad = unexpected_lines(p)
        assert not bad, bad[:5]
    assert set(SHARED.stop().values()) == {0}


if __name__ == "__main__":
    try:
        run(globals())
    finally:
        SHARED.stop()
