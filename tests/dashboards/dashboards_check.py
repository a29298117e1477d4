"""Every expression of the dashboards and rules on a real Prometheus that scrapes a live cluster under load: each returns data.
promtool checks the rules, their tests and the exposition. Environment: TANDEM_BUILD, TANDEM_PROMETHEUS (the folder of prometheus
and promtool). Standard library only.
"""
import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "integration"), HERE]
from files_test import expressions, gen  # noqa: E402
from h2_frames import Peer, END_HEADERS, END_STREAM, HEADERS, frame, head, until_end  # noqa: E402
from harness import Stream, certificate, chat, cluster, free_port, request, tokens_of, wait_for  # noqa: E402

TOOLS = os.environ["TANDEM_PROMETHEUS"]
TEXT = "figures for the boards " * 5
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
LOAD_S = 20  # after the first scrapes: rates need two samples of everything


def tool(name, *args, **options):
    return subprocess.run([os.path.join(TOOLS, name), *args], capture_output=True, text=True, timeout=120, **options)


def check_rules():
    rules = os.path.join(gen.FILES, "rules", "tandem.yaml")
    done = tool("promtool", "check", "rules", rules)
    assert done.returncode == 0, done.stdout + done.stderr
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(rules, folder)
        shutil.copy(os.path.join(HERE, "rules_test.yaml"), folder)
        done = tool("promtool", "test", "rules", "rules_test.yaml", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    print(f"rules: {len(gen.RECORDING)} recording and {len(gen.ALERTS)} alerting ones are valid and do what their tests say",
        flush=True)


def check_exposition(cl):
    """Syntax must be right; style complaints are allowed about names of others only."""
    for process in [cl.router] + list(cl.nodes.values()):
        text = cl.fetch(f"http://127.0.0.1:{process.port('admin')}/metrics")
        done = tool("promtool", "check", "metrics", input=text)
        assert done.returncode in (0, 3), (process.name, done.stdout + done.stderr)
        bad = [x for x in (done.stdout + done.stderr).splitlines() if x.strip() and not x.startswith("vllm:")]
        assert not bad, (process.name, bad)


@contextlib.contextmanager
def started(process):
    process.start()
    try:
        yield process
    finally:
        process.stop()


class Prometheus:
    def __init__(self, cl, more):
        self.folder = tempfile.mkdtemp(prefix="tandem-prom-")
        self.port = free_port()
        targets = [f"127.0.0.1:{p.port('admin')}" for p in [cl.router] + more + list(cl.nodes.values())]
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                  "rule_files": [os.path.join(gen.FILES, "rules", "tandem.yaml")],
                  "scrape_configs": [{"job_name": "tandem", "static_configs": [{"targets": targets,
                      "labels": {"namespace": "check"}}]}]}
        path = os.path.join(self.folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)  # which is YAML too
        with open(os.path.join(self.folder, "log"), "w", encoding="utf-8") as log:
            self.proc = subprocess.Popen(
                [os.path.join(TOOLS, "prometheus"), f"--config.file={path}", f"--storage.tsdb.path={self.folder}/data",
                 f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)

    def __enter__(self):
        wait_for(lambda: self.get("/-/ready"), 30, "Prometheus")
        wait_for(lambda: self.query("up == 1"), 15, "the first scrape")
        return self

    def __exit__(self, *exc):
        self.proc.terminate()
        self.proc.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def get(self, path):
        with open_url(f"http://127.0.0.1:{self.port}{path}", timeout=20) as r:
            return r.read().decode()

    def query(self, expr):
        """Finite values of an expression now."""
        answer = json.loads(self.get("/api/v1/query?" + urllib.parse.urlencode({"query": expr})))
        assert answer["status"] == "success", answer
        result = answer["data"]["result"]
        return [r for r in result if math.isfinite(float(r["value"][1]))]


def call(port, path):
    """A call of gRPC without a message: a method that takes one refuses it."""
    with Peer(port) as p:
        p.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, head(path)))
        assert list(until_end(p, 1))


def load(cl, until):
    """What a busy day brings: streams, whole answers, bad requests, clients that leave, calls of gRPC."""
    port = cl.router.port("http")

    def ask(i):
        n = 0
        while time.monotonic() < until:
            n += 1
            if i == 0 and n % 2:
                request(port, "POST", "/v1/completions", {"prompt": 7})
                call(cl.router.port("grpc"), "/tandem.v1.Engine/Tokenize")
                call(cl.nodes["decode-0"].port("admin"), "/grpc.health.v1.Health/Check")
            elif i == 0:
                s = Stream(port, text=TEXT, max_tokens=200, ignore_eos=True)
                next(s.events())
                s.close()
            elif i % 2:
                tokens_of(port, TEXT * (1 + n % 3), max_tokens=20, ignore_eos=True)
            else:
                chat(port, TEXT, max_tokens=10, ignore_eos=True)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    return threads


def resolve(expr):
    """As Grafana fills in its variables."""
    for name, value in (("$__rate_interval", "15s"), ("$namespace", "check"), ("$model_name", ".*"), ("$role", ".*")):
        expr = expr.replace(name, value)
    return expr


def main():
    start = time.monotonic()
    check_rules()
    faults = ["--fault", "kv.header.flip=fail:times=1"]  # one failed transfer and its replay a prefill node
    with cluster(2, 2, time_scale=1, prefill_args=faults, router=["--planned-prefill", "2", "--planned-decode", "2"]) as cl:
        pem, key = certificate()
        tls = cl.make_router("router-tls")  # for the figures of its certificate; its clients would need TLS
        tls.argv += ["--tls-cert", pem, "--tls-key", key]
        with started(tls), Prometheus(cl, [tls]) as prom:
            threads = load(cl, time.monotonic() + LOAD_S)
            time.sleep(LOAD_S - 3)
            asked = [(where, resolve(expr)) for where, expr in expressions()]
            values = {gen.ALERTS[n][0] for n in gen.ALERTS} | {resolve(gen.ALERTS[n][0]) for n in gen.ALERTS}
            conditions = {gen.alert_expr(n) for n in gen.ALERTS}
            empty = [(w, e) for w, e in asked if (e not in conditions or e in values) and not prom.query(e)]
            for t in threads:
                t.join()
            alerts = json.loads(prom.get("/api/v1/alerts"))["data"]["alerts"]
            firing = {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}
            health = [g for g in json.loads(prom.get("/api/v1/rules"))["data"]["groups"] for r in g["rules"] if r["health"] != "ok"]
            variables = [v["query"]["query"] for v in gen.board("x", "x", {})["templating"]["list"] if v["type"] == "query"]
            for v in variables:
                series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", v).groups()
                found = [r for r in prom.query(resolve(series)) if r["metric"].get(label)]
                assert found, f"variable {label} is empty: {v}"
        check_exposition(cl)
    assert not empty, "no data:\n" + "\n".join(f"  {w}: {e}" for w, e in empty)
    assert not health and not firing, (health, firing)
    print(f"{len(asked)} expressions of {len(gen.BOARDS)} boards and the rules return data, no alert fires; "
          f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
