"""What every integration test needs: TAP output, a tiny model, clusters from deploy/local/cluster.py, a plain client.

A test file defines functions `test_<sentence>(...)` and ends with `run(globals())`. Environment: TANDEM_BUILD (build folder),
TANDEM_TEST_MODEL (the 135M model, only for tests that say so). Standard library only.
"""
import http.client
import json
import os
import random
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "deploy", "local"))
from cluster import Cluster, ClusterError, Group, Process, open_url  # noqa: E402,F401

BUILD = os.environ.get("TANDEM_BUILD", os.path.join(ROOT, "build", "test"))
SCRATCH = tempfile.mkdtemp(prefix="tandem-it-")
TIME_SCALE = 0.1  # of every bound in failures.md part 1
LEAST = 60  # seconds of every wait


def tiny_model(seed=1, layers=3, kind="mix", heads=4, kv_heads=2, window=0):
    path = os.path.join(SCRATCH, f"tiny-{kind}-{layers}-{heads}-{kv_heads}-{window}-{seed}.gguf")
    if not os.path.exists(path):
        new = f"{path}.{threading.get_ident()}"  # threads may want the same one at once
        subprocess.run([os.path.join(BUILD, "tests", "tiny", "tiny-gguf"), new, "--seed", str(seed), "--layers",
                        str(layers), "--type", kind, "--heads", str(heads), "--kv-heads", str(kv_heads),
                        *(["--window", str(window)] if window else [])], check=True, stdout=subprocess.DEVNULL)
        os.replace(new, path)
    return path


def cluster(prefill=1, decode=1, **options):
    """A cluster over a tiny model with short bounds."""
    common = ["--time-scale", str(options.pop("time_scale", TIME_SCALE)), "--log-level", "info"]
    options["router"] = ["--request-timeout", "60"] + options.get("router", [])
    options["common"] = common + options.get("common", [])
    model = options.pop("model", None) or tiny_model()
    return Cluster(BUILD, model, "tiny", prefill, decode, folder=tempfile.mkdtemp(dir=SCRATCH), **options)


def certificate(days=30):
    """A self-signed certificate of this host and its key: two PEM files."""
    at = os.path.join(tempfile.mkdtemp(dir=SCRATCH), "tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-days", str(days), "-keyout", at + ".key", "-out", at + ".pem"],
                   check=True, capture_output=True)
    return at + ".pem", at + ".key"


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def issue(folder, name, ca=None, days=2):
    """name.pem and name.key in the folder, for 127.0.0.1; signed by ca.pem there, or a CA of its own."""
    at = os.path.join(folder, name)
    openssl("req", "-x509" if ca is None else "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", at + ".key", "-out", at + (".pem" if ca is None else ".csr"), "-subj", "/CN=" + name,
            *(["-days", str(days)] if ca is None else []))
    if ca is not None:
        with open(at + ".ext", "w", encoding="utf-8") as f:
            f.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        ca = os.path.join(folder, ca)
        openssl("x509", "-req", "-in", at + ".csr", "-CA", ca + ".pem", "-CAkey", ca + ".key", "-CAcreateserial", "-out",
                at + ".pem", "-days", str(days), "-extfile", at + ".ext")


def key_file():
    """A cluster secret of its own."""
    fd, path = tempfile.mkstemp(dir=SCRATCH, suffix=".key")
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        f.write(f"k1 {secrets.token_hex(24)}\n")
    return path


class Both:
    """One process with --role both: the reference of every identity test; with tp, a group of so many."""

    def __init__(self, model=None, args=(), tp=1):
        folder = tempfile.mkdtemp(dir=SCRATCH)
        argv = [os.path.join(BUILD, "tandem-prefill"), "--role", "both", "--model", model or tiny_model(),
                "--served-model-name", "tiny", "--port", "0", "--admin-port", "0", "--router-admin-port", "0",
                "--grpc-port", "0",
                "--threads", "1"] + list(args)
        self.proc = Process(folder, "both", argv) if tp == 1 else Group(
            folder, "both", argv + ["--name", "both", "--cluster-key-file", key_file()], tp)

    def __enter__(self):
        self.proc.start()
        port = self.proc.port("http")
        wait_for(lambda: get(port, "/health")[0] == 200, 30, "role both to be ready")
        return self

    def __exit__(self, *exc):
        self.proc.stop()

    @property
    def port(self):
        return self.proc.port("http")


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        """The error object, checked for its shape (interfaces.md 1.5)."""
        e = self.json()["error"]
        assert set(e) == {"message", "type", "param", "code"}, e
        assert isinstance(e["message"], str) and e["message"], e
        return e


def request(port, method, path, body=None, headers=None, timeout=60):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        head = {"Content-Type": "application/json"} if body is not None else {}
        head.update(headers or {})
        c.request(method, path, body, head)
        r = c.getresponse()
        return Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read().decode())
    finally:
        c.close()


def get(port, path):
    a = request(port, "GET", path)
    return a.status, a.body


def open_get(url, body=False, timeout=10):
    """Status of a GET, or its body; an address that does not answer is an OSError."""
    try:
        with open_url(url, timeout=timeout) as answer:
            return answer.read().decode() if body else answer.status
    except urllib.error.HTTPError as e:
        return e.code


def chat(port, text="hello", **fields):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}
    body.update(fields)
    return request(port, "POST", "/v1/chat/completions", body)


def tokens_of(port, prompt, **fields):
    """Output token ids of one completion."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 24, "return_token_ids": True}
    body.update(fields)
    a = request(port, "POST", "/v1/completions", body)
    assert a.status == 200, a.body
    return a.json()["choices"][0]["token_ids"]


class Stream:
    """A streaming answer, read event by event; close() leaves like a client that goes away."""

    def __init__(self, port, path="/v1/chat/completions", headers=None, **fields):
        body = {"temperature": 0, "max_tokens": 8, "stream": True}
        if "chat" in path:
            body["messages"] = [{"role": "user", "content": fields.pop("text", "hello")}]
        body.update(fields)
        self.c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        self.r = None
        self.done = False

    def open(self):
        if self.r is None:
            self.r = self.c.getresponse()
        return self.r

    def events(self):
        self.open()
        if self.r.status != 200:
            raise AssertionError(f"status {self.r.status}: {self.r.read().decode()}")
        for raw in self.r:
            line = raw.decode().rstrip("\r\n")
            if line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                yield json.loads(line[6:])

    def close(self):
        # With the answer read through http.client the socket has two owners: shut it down for both.
        if self.c.sock is not None:
            try:
                self.c.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        if self.r is not None:
            self.r.close()
        self.c.close()


def free_port():
    """A port on which nobody listens, below those that the system gives to clients: none of theirs takes it before who is to
    listen there does, and none that dials it meanwhile is connected to itself."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        first = int(f.read().split()[0])
    for port in random.SystemRandom().sample(range(first // 2, first), 100):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise AssertionError("no free port")


def wait_for(condition, seconds, what):
    """Polls for so long, or LEAST: machines are shared, the bound is for failing, not for timing."""
    seconds = max(seconds, LEAST)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s for {what}")


def all_blocks_back(cl, node, seconds=30):
    """free + cached = pool on a node, by scrape."""
    def clean():
        b = cl.blocks(node)
        return b["free"] + b["cached"] == sum(b.values()) > 0
    wait_for(clean, seconds, f"the blocks of {node.name} to come back: {cl.blocks(node)}")


def in_threads(jobs):
    """Runs callables at once; returns their results in order, raises the first failure."""
    out, errors = [None] * len(jobs), []

    def one(i):
        try:
            out[i] = jobs[i]()
        except BaseException as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return out


def unexpected_lines(process, allowed=()):
    """Warnings and errors of a log that a test did not expect."""
    bad = [line for line in process.log().splitlines() if re.search(r"level=(warn|error)", line)]
    return [line for line in bad if not any(a in line for a in allowed)]


def run(names):
    tests = [(n, f) for n, f in names.items() if n.startswith("test_") and callable(f)]
    only = sys.argv[1:]
    tests = [(n, f) for n, f in tests if not only or any(o in n for o in only)]
    print(f"1..{len(tests)}", flush=True)
    failed = 0
    for i, (name, test) in enumerate(tests, 1):
        try:
            test()
            print(f"ok {i} - {name[5:]}", flush=True)
        except Exception:  # noqa: BLE001
            failed += 1
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            print(f"not ok {i} - {name[5:]}", flush=True)
    import shutil
    if not failed:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    else:
        print(f"# logs are in {SCRATCH}")
    sys.exit(1 if failed else 0)
