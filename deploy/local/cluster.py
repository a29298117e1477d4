"""A cluster of local processes: one router, some prefill and decode nodes, every port free, logs in one folder.

Used by `dev demo`, `dev up` and the integration tests. Standard library only.
"""
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


# Our own processes on loopback: a proxy of the environment has no part in this.
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class ClusterError(Exception):
    pass


class Process:
    """One tandem process with its log and its published ports."""

    def __init__(self, folder, name, argv, env=None):
        self.name, self.argv, self.folder, self.env = name, argv, folder, env
        self.log_path = os.path.join(folder, name + ".log")
        self.port_path = os.path.join(folder, name + ".ports")
        self.proc = None

    def start(self):
        if os.path.exists(self.port_path):
            os.unlink(self.port_path)
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(
                self.argv + ["--port-file", self.port_path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ, **(self.env or {})),
                start_new_session=True,
            )
        return self

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def ports(self, timeout=60.0, want="admin"):
        """What it has published, once `want` is there: rank 0 of a group tells where the others join before all else."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if os.path.exists(self.port_path):
                with open(self.port_path, encoding="utf-8") as f:
                    found = dict(line.split(None, 1) for line in f.read().splitlines())
                if want in found:
                    return found
            if not self.alive():
                raise ClusterError(f"{self.name} ended with status {self.proc.returncode}:\n{self.log()[-3000:]}")
            time.sleep(0.01)
        raise ClusterError(f"{self.name} published no ports in {timeout:.0f} s:\n{self.log()[-3000:]}")

    def port(self, what):
        return int(self.ports()[what].rsplit(":", 1)[-1])

    def signal(self, signo):
        if self.alive():
            self.proc.send_signal(signo)

    def kill(self):
        """kill -9, and reap at once: UCX never reports a zombie as dead."""
        self.signal(signal.SIGKILL)
        return self.wait(10)

    def wait(self, timeout):
        try:
            return self.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, timeout=30):
        """SIGTERM, then the exit status; a process that does not end is killed and None returned."""
        if self.proc is None:
            return 0
        self.signal(signal.SIGTERM)
        status = self.wait(timeout)
        if status is None:
            self.signal(signal.SIGKILL)
            self.wait(10)
        return status


class Group(Process):
    """A node of several processes (--tensor-parallel-size): rank 0, which is the node, and those that follow it."""

    def __init__(self, folder, name, argv, size, env=None):
        super().__init__(folder, name, argv + ["--tensor-parallel-size", str(size), "--rank-listen", "127.0.0.1:0"], env)
        self.size, self.followers = size, []

    @property
    def processes(self):
        return [self] + self.followers

    def follower(self, rank, leader):
        argv = list(self.argv)
        argv[argv.index("--name") + 1] = name = f"{self.name}-rank{rank}"
        return Process(self.folder, name, argv + ["--rank", str(rank), "--rank-leader", leader], self.env)

    def start(self):
        super().start()
        leader = "127.0.0.1:" + self.ports(want="ranks")["ranks"]
        self.followers = []
        for rank in range(1, self.size):  # each is ours as soon as it runs: an interrupt may come in between
            self.followers.append(self.follower(rank, leader))
            self.followers[-1].start()
        return self

    def stop(self, timeout=30):
        """SIGTERM to rank 0, by whose goodbye the others end; of several statuses, the first that is not 0. Those that have not
        joined yet hear no goodbye: SIGTERM to them too, when rank 0 has ended."""
        status = super().stop(timeout)
        for follower in self.followers:
            follower.signal(signal.SIGTERM)
        for follower in self.followers:
            if follower.wait(timeout) is None:
                follower.kill()
            status = status or follower.proc.returncode
        return status


class Cluster:
    """Starts nodes first, then the router; stops in the other order."""

    def __init__(self, build, model, name="tandem", prefill=1, decode=1, **options):
        self.build, self.model, self.served = build, model, name
        self.n_prefill, self.n_decode = prefill, decode
        self.common = options.get("common", [])       # arguments of every process
        self.node_args = options.get("node", [])      # of every node
        self.prefill_args = options.get("prefill_args", [])
        self.decode_args = options.get("decode_args", [])
        self.router_args = options.get("router", [])
        self.ports = options.get("ports", {})         # fixed ports of the router: http, admin
        self.tp = options.get("tp", {})               # processes of each node of a role: {"prefill": 2}
        self.folder = options.get("folder") or tempfile.mkdtemp(prefix="tandem-")
        self.key_file = os.path.join(self.folder, "cluster.key")
        fd = os.open(self.key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w", encoding="utf-8") as f:
            f.write(f"local {secrets.token_hex(24)}\n")
        self.nodes, self.router = {}, None

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exc):
        self.stop()

    def binary(self, name):
        for path in (os.path.join(self.build, name), os.path.join(self.build, "router", name)):
            if os.path.exists(path):
                return path
        raise ClusterError(f"{name} is not built in {self.build}: run ./dev build")

    def node(self, role, name, listen="tcp://127.0.0.1:0"):
        extra = self.prefill_args if role == "prefill" else self.decode_args
        argv = [self.binary("tandem-" + role), "--model", self.model, "--served-model-name", self.served,
                "--cluster-key-file", self.key_file, "--name", name, "--listen", listen, "--admin-port", "0",
                "--threads", "1"] + self.common + self.node_args + extra
        size = self.tp.get(role, 1)
        self.nodes[name] = Group(self.folder, name, argv, size) if size > 1 else Process(self.folder, name, argv)
        return self.nodes[name]

    def make_router(self, name="router"):
        argv = [self.binary("tandem-router"), "--model", self.model, "--served-model-name", self.served,
                "--cluster-key-file", self.key_file, "--name", name,
                "--port", str(self.ports.get("http", 0)), "--admin-port", str(self.ports.get("admin", 0)),
                "--grpc-port", str(self.ports.get("grpc", 0))]
        for node in self.nodes.values():
            argv += ["--node", node.ports()["control"]]
        return Process(self.folder, name, argv + self.common + self.router_args)

    def start(self, wait=True):
        for i in range(self.n_prefill):
            self.node("prefill", f"prefill-{i}").start()
        for i in range(self.n_decode):
            self.node("decode", f"decode-{i}").start()
        self.router = self.make_router().start()
        if wait:
            self.wait_ready(self.n_prefill, self.n_decode)
        return self

    def present(self, listed):
        """Whether an entry of the router's /nodes is a process of today. For a while after a process has ended, or is there
        again under its old name, the router may still list the one before; its admin port tells them apart."""
        node = self.nodes.get(listed["name"])
        return node is None or node.alive() and int(listed["admin"].rsplit(":", 1)[-1]) == node.port("admin")

    def wait_ready(self, prefill=1, decode=1, timeout=60.0):
        """Until the router counts so many usable nodes of each role, none of which has ended since."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                nodes = self.admin("/nodes")["nodes"]
                ready = [n["role"] for n in nodes if n["ready"] and not n["draining"] and self.present(n)]
                if ready.count("prefill") >= prefill and ready.count("decode") >= decode:
                    return
            except (OSError, urllib.error.URLError):
                pass
            if not self.router.alive():
                raise ClusterError("the router ended:\n" + self.router.log()[-3000:])
            time.sleep(0.02)
        raise ClusterError(f"not ready in {timeout:.0f} s; logs are in {self.folder}\n" + self.router.log()[-2000:])

    def restart(self, name):
        """The same node again, on the control port that the router knows."""
        old = self.nodes[name]
        url = old.ports()["control"]
        old.argv[old.argv.index("--listen") + 1] = url
        return old.start()

    @property
    def processes(self):
        nodes = [p for node in self.nodes.values() for p in getattr(node, "processes", [node])]
        return nodes + ([self.router] if self.router is not None else [])

    def stop(self):
        """Exit statuses by name. Interrupted, for example by a second Ctrl-C, it leaves nobody behind."""
        try:
            return self.stop_in_peace()
        except BaseException:
            for p in self.processes:
                p.signal(signal.SIGKILL)
            for p in self.processes:
                p.proc and p.wait(10)
            raise

    def stop_in_peace(self):
        status = {}
        if self.router is not None:
            status[self.router.name] = self.router.stop()
        for node in self.nodes.values():
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM)
        for name, node in self.nodes.items():
            status[name] = node.stop()
        return status

    # ---- talking to it ----

    def url(self, path=""):
        return f"http://127.0.0.1:{self.router.port('http')}{path}"

    def fetch(self, url, timeout=10.0):
        with open_url(url, timeout=timeout) as answer:
            return answer.read().decode()

    def admin(self, path):
        return json.loads(self.fetch(f"http://127.0.0.1:{self.router.port('admin')}{path}"))

    def metrics(self, process):
        """The samples of a process: {'name{labels}': value}."""
        out = {}
        for line in self.fetch(f"http://127.0.0.1:{process.port('admin')}/metrics").splitlines():
            if line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                out[key] = float(value)
        return out

    def blocks(self, process):
        """KV blocks by state."""
        found = {}
        for key, value in self.metrics(process).items():
            if key.startswith("tandem_node_kv_blocks{"):
                found[key.split('state="', 1)[1].split('"', 1)[0]] = int(value)
        return found


def stream_chat(url, body, headers=None, timeout=600.0):
    """Yields (seconds since the request, event) for each data event of a streaming answer."""
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     dict({"Content-Type": "application/json"}, **(headers or {})))
    start = time.monotonic()
    with open_url(request, timeout=timeout) as answer:
        for line in answer:
            line = line.decode().rstrip("\n")
            if line.startswith("data: ") and line != "data: [DONE]":
                yield time.monotonic() - start, json.loads(line[6:])
