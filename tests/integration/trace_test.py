"""Traces as a collector gets them (OTLP over HTTP, JSON): links, times, attributes; a dead collector harms nothing. JSON logs."""
import http.server
import json
import os
import re
import ssl
import subprocess
import tempfile
import threading
import time

from harness import SCRATCH, Both, Stream, issue, chat, cluster, in_threads, request, run, tokens_of, wait_for

TEXT = "one request and its spans " * 4
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ["queue", "route", "prefill_queue", "prefill", "kv_transfer", "reserve", "decode_queue", "decode"]


class Collector:
    """Keeps every span with its resource; can answer late or not at all."""

    def __init__(self, delay=0, tls=None):
        self.spans, self.posts, self.headers = [], 0, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                outer.headers.append(dict(self.headers))
                time.sleep(delay)
                outer.take(body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.tls = tls
        if tls is not None:  # a folder with server.pem and .key, and the CA of those who may ask
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(os.path.join(tls, "server.pem"), os.path.join(tls, "server.key"))
            context.load_verify_locations(os.path.join(tls, "ca.pem"))
            context.verify_mode = ssl.CERT_REQUIRED
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # a poster that did not wait
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.server.server_address[1]}"

    def take(self, body):
        self.posts += 1
        for resource in body["resourceSpans"]:
            about = attributes(resource["resource"]["attributes"])
            for scope in resource["scopeSpans"]:
                assert scope["scope"]["name"] == "tandem"
                for span in scope["spans"]:
                    span["about"], span["attrs"] = about, attributes(span["attributes"])
                    span["start"], span["end"] = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                    self.spans.append(span)

    def of(self, trace, name=None):
        return [s for s in list(self.spans) if s["traceId"] == trace and (name is None or s["name"] == name)]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def attributes(rows):
    out = {}
    for row in rows:
        (kind, value), = row["value"].items()
        if kind == "intValue":
            value = int(value)
        if kind == "arrayValue":
            value = [v["stringValue"] for v in value["values"]]
        out[row["key"]] = value
    return out


def traced(collector, prefill=1, decode=1, **options):
    options["common"] = ["--otlp-endpoint", collector.url] + options.get("common", [])
    return cluster(prefill, decode, time_scale=1, **options)


def complete(collector, trace, names):
    wait_for(lambda: {s["name"] for s in collector.of(trace)} >= set(names), 15,
             f"spans {names}; there are {[s['name'] for s in collector.spans]}")


def test_a_request_is_one_tree_of_the_five_stages():
    collector = Collector()
    with traced(collector) as cl:
        port = cl.router.port("http")
        before = time.time_ns()
        a = request(port, "POST", "/v1/chat/completions",
                    {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 6, "ignore_eos": True, "seed": 7,
                     "stop": ["~~"], "temperature": 0},
                    headers={"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "rojo=1", "x-request-id": "abc-1"})
        after = time.time_ns()
        assert a.status == 200
        complete(collector, TRACE, ["chat tiny"] + STAGES)
        root, = collector.of(TRACE, "chat tiny")
        usage = a.json()["usage"]
        assert root["parentSpanId"] == SPAN and root["kind"] == 2 and root["traceState"] == "rojo=1"
        assert root["about"]["service.name"] == "tandem-router" and root["about"]["service.instance.id"] == "router"
        want = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "tandem", "gen_ai.request.model": "tiny",
                "gen_ai.response.model": "tiny", "gen_ai.request.max_tokens": 6, "gen_ai.request.seed": 7,
                "gen_ai.request.stop_sequences": ["~~"], "gen_ai.response.id": a.json()["id"],
                "gen_ai.response.finish_reasons": ["length"], "gen_ai.usage.input_tokens": usage["prompt_tokens"],
                "gen_ai.usage.output_tokens": usage["completion_tokens"], "http.response.status_code": 200,
                "server.address": "127.0.0.1", "server.port": port,
                "url.path": "/v1/chat/completions", "tandem.request_id": "abc-1"}
        assert {k: root["attrs"].get(k) for k in want} == want, root["attrs"]
        assert "error.type" not in root["attrs"] and "status" not in root
        assert TEXT not in json.dumps(collector.spans)  # no prompt leaves by a trace
        slack = 5_000_000  # two clocks of one machine
        assert before - slack <= root["start"] <= root["end"] <= after + slack
        ids = {root["spanId"]}
        for name in STAGES:
            spans = collector.of(TRACE, name)
            assert len(spans) == (2 if name == "kv_transfer" else 1), (name, len(spans))
            for s in spans:
                ids.add(s["spanId"])
                assert s["parentSpanId"] == root["spanId"] and s["kind"] == 1 and s["traceState"] == "rojo=1", s
                assert root["start"] - slack <= s["start"] <= s["end"], s
                assert s["about"]["service.name"] == "tandem-router" or s["attrs"]["tandem.request_id"] == "abc-1"
        assert len(ids) == 2 + len(STAGES)  # all different
        one = {n: collector.of(TRACE, n)[0] for n in STAGES}
        assert one["queue"]["end"] == one["route"]["start"]
        assert one["prefill_queue"]["end"] == one["prefill"]["start"] and one["decode_queue"]["end"] == one["decode"]["start"]
        assert one["prefill"]["about"]["service.instance.id"] == "prefill-0" == one["route"]["attrs"]["tandem.prefill_node"]
        assert one["decode"]["about"]["service.instance.id"] == "decode-0" == one["route"]["attrs"]["tandem.decode_node"]
        assert one["prefill"]["attrs"]["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert one["decode"]["attrs"]["gen_ai.usage.output_tokens"] == 6
        moved = {s["attrs"]["tandem.kv.bytes"] for s in collector.of(TRACE, "kv_transfer")}
        assert len(moved) == 1 and moved.pop() > 0
        pairs = json.loads(one["route"]["attrs"]["tandem.decision"])
        assert pairs["tries"][0]["candidates"][0]["chosen"] is True, pairs
    collector.close()


def test_sampling_follows_the_caller_and_the_ratio():
    collector = Collector()
    with traced(collector, common=["--log-level", "info", "--trace-sample-ratio", "0"]) as cl:
        port = cl.router.port("http")
        for flags in ("00", "01"):
            trace = TRACE[:-2] + flags
            assert request(port, "POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 3},
                           headers={"traceparent": f"00-{trace}-{SPAN}-{flags}"}).status == 200
        assert chat(port, TEXT).status == 200  # begins here: ratio 0
        assert chat(port, TEXT, max_tokens=3).status == 200
        complete(collector, TRACE[:-2] + "01", ["text_completion tiny", "decode"])
        assert {s["traceId"] for s in collector.spans} == {TRACE[:-2] + "01"}
    with traced(collector, router=["--trace-sample-ratio", "1"]) as cl:
        assert request(cl.router.port("http"), "POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 3},
                       headers={"traceparent": "00-nonsense-01"}).status == 200
        wait_for(lambda: sum(s["kind"] == 2 for s in list(collector.spans)) == 2, 10, "a trace of our own")
        mine, = [s for s in collector.spans if s["kind"] == 2 and s["traceId"] != TRACE[:-2] + "01"]
        assert "parentSpanId" not in mine
    collector.close()


def test_failures_are_told_as_such():
    collector = Collector()
    with traced(collector, prefill_args=["--fault", "step.fail=fail:times=1"]) as cl:
        port = cl.router.port("http")
        assert request(port, "POST", "/v1/completions", {"prompt": 7},
                       headers={"traceparent": f"00-{TRACE}-{SPAN}-01"}).status == 400
        complete(collector, TRACE, ["text_completion tiny"])
        bad, = collector.of(TRACE)
        assert bad["attrs"]["error.type"] == "bad_request" and "status" not in bad  # the client's fault is no error of ours
        again = TRACE[:-1] + "d"
        assert request(port, "POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 3, "ignore_eos": True},
                       headers={"traceparent": f"00-{again}-{SPAN}-01"}).status == 200
        complete(collector, again, ["text_completion tiny", "decode"])
        wait_for(lambda: len(collector.of(again, "prefill")) == 2, 10, "both tries")
        failed, = [s for s in collector.of(again, "prefill") if "status" in s]
        assert failed["status"]["code"] == 2 and failed["attrs"]["error.type"]
        routes = sorted(collector.of(again, "route"), key=lambda s: s["attrs"]["tandem.attempt"])
        assert [r["attrs"]["tandem.attempt"] for r in routes] == [0, 1]
        assert "status" in routes[0] and "status" not in routes[1]
        assert "status" not in collector.of(again, "text_completion tiny")[0]  # the client saw an answer
        gone = TRACE[:-1] + "e"
        s = Stream(port, text=TEXT, max_tokens=1800, ignore_eos=True, headers={"traceparent": f"00-{gone}-{SPAN}-01"})
        next(s.events())
        s.close()
        complete(collector, gone, ["chat tiny"])
        assert collector.of(gone, "chat tiny")[0]["attrs"]["http.response.status_code"] == 499
    collector.close()


def spans_total(cl, process, outcome):
    return sum(v for k, v in cl.metrics(process).items() if "trace_spans_total" in k and f'outcome="{outcome}"' in k)


def test_a_dead_or_slow_collector_harms_nothing():
    slow = Collector(delay=3)
    dead = Collector()
    dead.close()
    took = {}
    for name, url in (("none", ""), ("dead", dead.url), ("slow", slow.url)):
        with cluster(time_scale=1, common=["--otlp-endpoint", url] if url else []) as cl:
            port = cl.router.port("http")
            start = time.monotonic()
            for _ in range(5):
                in_threads([lambda: tokens_of(port, TEXT, max_tokens=8, ignore_eos=True) for _ in range(8)])
            took[name] = time.monotonic() - start
            if name == "dead":
                wait_for(lambda: spans_total(cl, cl.router, "failed") > 0, 10, "lost spans to be counted")
                assert spans_total(cl, cl.router, "sent") == 0
                line = [x for x in cl.router.log().splitlines() if "does not take spans" in x]
                assert len(line) == 1, line  # said once
            start = time.monotonic()
        assert time.monotonic() - start < 20  # and nobody waits for it at the end
    assert took["dead"] < 3 + 3 * took["none"] and took["slow"] < 3 + 3 * took["none"], took
    slow.close()


def test_a_collector_behind_tls_gets_spans_with_headers_from_who_shows_a_certificate():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    issue(folder, "ca")
    issue(folder, "server", "ca")
    issue(folder, "client", "ca")
    issue(folder, "stranger")
    collector = Collector(tls=folder)

    def environment(ca):
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20secret,x-tenant=7",
                "OTEL_EXPORTER_OTLP_CERTIFICATE": os.path.join(folder, ca + ".pem"),
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": os.path.join(folder, "client.pem"),
                "OTEL_EXPORTER_OTLP_CLIENT_KEY": os.path.join(folder, "client.key")}

    for ca, trusted in (("ca", True), ("stranger", False)):
        seen = len(collector.headers)
        os.environ.update(environment(ca))
        try:
            with cluster(1, 1, time_scale=1) as cl:
                assert chat(cl.router.port("http"), max_tokens=2).status == 200
                if trusted:
                    wait_for(lambda: {"queue", "prefill", "decode"} <= {s["name"] for s in list(collector.spans)}, 30, "the spans")
                    assert "a secret" not in cl.router.log()
                else:
                    wait_for(lambda: "the server's certificate is not trusted" in cl.router.log(), 30, "the refusal")
        finally:
            for name in environment(ca):
                del os.environ[name]
        assert (len(collector.headers) > seen) == trusted
    assert all(h["api-key"] == "a secret" and h["x-tenant"] == "7" for h in collector.headers)
    collector.close()


def test_one_process_with_both_roles_tells_the_same_tree():
    collector = Collector()
    with Both(args=["--otlp-endpoint", collector.url]) as both:
        assert request(both.port, "POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 4, "ignore_eos": True},
                       headers={"traceparent": f"00-{TRACE}-{SPAN}-01"}).status == 200
        complete(collector, TRACE, ["text_completion tiny", "queue", "route", "prefill_queue", "prefill", "decode_queue", "decode"])
    assert not collector.of(TRACE, "kv_transfer")
    collector.close()


def test_json_logs_are_json_with_request_and_trace_ids():
    with cluster(time_scale=1, common=["--log-format", "json", "--log-level", "debug"]) as cl:
        port = cl.router.port("http")
        request(port, "POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 3, "ignore_eos": True},
                headers={"traceparent": f"00-{TRACE}-{SPAN}-01", "x-request-id": "json-1"})
        chat(port, 'quotes " and \\ and \n and \x7f and \u00e9')
        request(port, "GET", '/no"such\\path%0a')
        wait_for(lambda: "dc_stream" in cl.nodes["decode-0"].log(), 10, "the node's last words")
        for process in [cl.router] + list(cl.nodes.values()):
            lines = [json.loads(line) for line in process.log().splitlines()]
            assert lines and all({"ts", "level", "room", "msg"} <= set(line) for line in lines)
            assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"]) for line in lines)
            mine = [line for line in lines if line.get("req") == "json-1"]
            assert mine, process.name
            assert any(line.get("trace") == TRACE for line in mine), (process.name, mine)


if __name__ == "__main__":
    run(globals())
