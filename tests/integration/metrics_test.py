"""The committed list of metrics, docs/metrics.md, against what a cluster serves: nothing missing, nothing stuck."""
import os
import re
import subprocess
import time

from harness import BUILD, ROOT, Stream, certificate, chat, cluster, get, in_threads, request, run, tokens_of, wait_for

TEXT = "one request and its figures " * 4
TYPES = ("counter", "gauge", "histogram")


def listed():
    """{name: (type, roles on which it moves, labels, when it moves)} of docs/metrics.md."""
    out = {}
    with open(os.path.join(ROOT, "docs", "metrics.md"), encoding="utf-8") as f:
        for line in f:
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if not cells[0].startswith("`") or cells[1] not in TYPES:
                continue
            name, type_ = cells[0].strip("`"), cells[1]
            roles = ["router"] if len(cells) == 5 else cells[2].split(", ")
            labels, moves = cells[-3], cells[-2]
            before = out.get(name, (type_, [], "", moves))[1]
            out[name] = (type_, before + roles, set() if labels == "-" else set(labels.split(", ")), moves)
    return out


LISTED = listed()
COMMON = {"router": {"model_name"}, "node": {"model_name", "role", "node"}}


class Scrape:
    """One scrape of one process, checked: families declared, kv_blocks add up."""

    def __init__(self, cl, process):
        self.role = "router" if process.name.startswith("router") else process.name.split("-")[0]
        self.types, self.values = {}, {}
        text = cl.fetch(f"http://127.0.0.1:{process.port('admin')}/metrics")
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, type_ = line.split()
                self.types[name] = type_
            elif line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                self.values[key] = float(value)
        blocks = [v for k, v in self.values.items() if k.startswith("tandem_node_kv_blocks{")]
        assert self.role == "router" or sum(blocks) == self.pool(), (process.name, blocks)

    def pool(self):
        return int(re.search(r'num_gpu_blocks="(\d+)"', next(k for k in self.values if "cache_config_info" in k))[1])

    def moved(self, name):
        """Whether a sample of this name is not zero; a histogram's is its count."""
        if LISTED[name][0] == "histogram":
            name += "_count"
        return any(v != 0 for k, v in self.values.items() if k.split("{")[0] == name)

    def value(self, start):
        return sum(v for k, v in self.values.items() if k.startswith(start))

    def labels(self, name):
        found = set()
        for key in self.values:
            if key.split("{")[0] in (name, name + "_count"):
                found |= set(re.findall(r'(\w+)="', key)) - {"le"}
        return found


def processes(cl):
    return [cl.router] + list(cl.nodes.values())


def scrapes(cl):
    return [Scrape(cl, p) for p in processes(cl)]


def expected(role, moves):
    return [n for n, row in LISTED.items() if role in row[1] and row[3] == moves]


def test_the_list_and_what_is_served_are_the_same():
    with cluster(time_scale=1) as cl:
        for s in scrapes(cl):
            mine = {n: row[0] for n, row in LISTED.items() if s.role in row[1]}
            nodes = {n for n, row in LISTED.items() if row[1] != ["router"]}
            assert set(mine) <= set(s.types), (s.role, set(mine) - set(s.types))
            unlisted = set(s.types) - (set(mine) if s.role == "router" else nodes)
            assert not unlisted, (s.role, unlisted)
            assert all(s.types[n] == t for n, t in mine.items()), s.role


# The bounds with which vLLM serves these; token counts are a 1-2-5 series there up to the model's length.
BOUNDS = {
    "vllm:time_to_first_token_seconds": ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560",
    "vllm:inter_token_latency_seconds": ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80",
    "vllm:request_time_per_output_token_seconds": ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80",
    "vllm:e2e_request_latency_seconds": ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680",
    "vllm:request_queue_time_seconds": ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680",
    "vllm:request_prompt_tokens": "1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000 50000 100000",
    "vllm:request_params_n": "1 2 5 10 20",
    "vllm:nixl_xfer_time_seconds": ".005 .01 .025 .05 .075 .1 .2 .3 .5 .75 1 5",
    "vllm:nixl_bytes_transferred": " ".join(str(2 ** e) for e in range(11, 34, 2)),
}
FINER = {.001, .002, .005}  # what we add to the times between tokens


def test_histograms_have_the_fields_bounds():
    with cluster(time_scale=1) as cl:
        for s in scrapes(cl)[1:]:
            for name, bounds in BOUNDS.items():
                samples = "\n".join(k for k in s.values if k.startswith(name + "_bucket{"))
                ours = {float(b) for b in re.findall(r'[{,]le="([0-9.e+]+)"', samples)}
                theirs = {float(b) for b in bounds.split()}
                more = {b for b in ours if b > max(theirs)} if name.startswith("vllm:request_p") else set()
                more |= FINER if re.search("inter_token|per_output", name) else set()
                assert theirs <= ours and ours - theirs <= more, (name, sorted(ours ^ theirs))


def test_everything_moves_after_one_request():
    with cluster(time_scale=1) as cl:
        port = cl.router.port("http")
        assert chat(port, TEXT, max_tokens=6, ignore_eos=True).status == 200
        stuck = {}

        def all_moved():
            for s in scrapes(cl):
                stuck[s.role] = [n for n in expected(s.role, "request") if not s.moved(n)]
            return not any(stuck.values())

        try:
            wait_for(all_moved, 10, "all metrics to move")  # a node's last words come after the answer
        except AssertionError:
            raise AssertionError(f"never moved: {stuck}") from None
        for s in scrapes(cl):
            common = COMMON["router" if s.role == "router" else "node"]
            for name in expected(s.role, "request"):
                if name != "tandem_metrics_lost_total":
                    assert s.labels(name) == LISTED[name][2] | common, (s.role, name, s.labels(name))


def test_the_figures_of_one_request_are_plausible():
    with cluster(time_scale=1) as cl:
        start = time.monotonic()
        a = chat(cl.router.port("http"), TEXT, max_tokens=6, ignore_eos=True)
        took = time.monotonic() - start
        usage = a.json()["usage"]
        wait_for(lambda: cl.metrics(cl.nodes["prefill-0"]) and Scrape(cl, cl.nodes["prefill-0"]).moved(
            "tandem_node_kv_transfer_bytes"), 10, "the transfer's figures")
        router, prefill, decode = scrapes(cl)
        assert router.value("tandem_router_prompt_tokens_sum") == usage["prompt_tokens"]
        assert router.value("tandem_router_output_tokens_sum") == 6
        assert prefill.value("vllm:prompt_tokens_total") == usage["prompt_tokens"]
        assert prefill.value("vllm:generation_tokens_total") + decode.value("vllm:generation_tokens_total") in (6, 7)
        moved = prefill.value("tandem_node_kv_transfer_bytes_sum")
        assert moved == decode.value("tandem_node_kv_transfer_bytes_sum") > 0
        assert prefill.value('tandem_node_kv_transfer_transport_bytes_total') == moved
        path = re.search(r'transport="(\w+)"', next(k for k in prefill.values if "transport_bytes" in k))[1]
        assert path in ("shm", "cma", "tcp"), path
        # From the first post to the last completion: longer than no time, shorter than the whole answer took.
        assert moved / took <= prefill.value("tandem_node_kv_transfer_bytes_per_second") < 1e12
        assert 0 < router.value("tandem_router_request_seconds_sum") <= took
        assert 0 < router.value("tandem_router_time_to_first_token_seconds_sum") <= took


def test_figures_equal_what_clients_saw():
    """Requests and tokens, summed over everything that clients of all kinds were told."""
    with cluster(2, 2, time_scale=1) as cl:
        port = cl.router.port("http")
        bodies = [dict(text=TEXT[:10 + 7 * i], max_tokens=3 + i % 4, ignore_eos=True, n=1 + (i % 5 == 0)) for i in range(20)]
        answers = in_threads([lambda b=b: chat(port, b.pop("text"), **b) for b in bodies])
        streamed = in_threads([lambda i=i: len(tokens_of(port, TEXT[:20 + i], max_tokens=5, ignore_eos=True)) for i in range(5)])
        bad = [request(port, "POST", "/v1/completions", {"prompt": 7}).status for _ in range(3)]
        assert all(a.status == 200 for a in answers) and streamed == [5] * 5 and bad == [400] * 3
        usage = [a.json()["usage"] for a in answers]
        prompt, output = (sum(u[k] for u in usage) for k in ("prompt_tokens", "completion_tokens"))
        works = sum(len(a.json()["choices"]) for a in answers) + 5
        s = Scrape(cl, cl.router)
        assert s.value('tandem_router_requests_total{model_name="tiny",code="200"}') == 25
        assert s.value('tandem_router_requests_total{model_name="tiny",code="400"}') == 3
        assert s.value('tandem_router_admissions_total{model_name="tiny",outcome="dispatched"}') == works
        assert s.value("tandem_router_output_tokens_sum") == output + 25
        assert s.value("tandem_router_inter_token_latency_seconds_count") == output + 25 - works
        assert s.value("gen_ai_server_request_duration_seconds_count") == 28
        tokens = {k: sum(v for n, v in s.values.items() if n.startswith("gen_ai_client_token_usage_sum") and f'type="{k}"' in n)
                  for k in ("input", "output")}
        assert tokens["output"] == output + 25
        streamed_prompt = tokens["input"] - prompt  # the streams did not ask for their usage
        assert streamed_prompt > 0

        def settled():
            nodes = scrapes(cl)[1:]
            return sum(n.value("vllm:request_success_total") for n in nodes) == 2 * works

        wait_for(settled, 10, "the nodes' last words")
        prefill = [n for n in scrapes(cl) if n.role == "prefill"]
        decode = [n for n in scrapes(cl) if n.role == "decode"]
        computed = sum(n.value("vllm:prompt_tokens_total") for n in prefill)
        assert computed == sum(n.value("vllm:external_prefix_cache_hits_total") for n in decode)
        assert computed == s.value("tandem_router_prompt_tokens_sum")
        assert sum(n.value("vllm:request_generation_tokens_sum") for n in decode) == output + 25
        for role in (prefill, decode):
            assert sum(n.value("vllm:request_prompt_tokens_sum") for n in role) == computed


def test_a_crowd_and_a_plan_show():
    slow = ["--fault", "step.pause=delay:us=20000"]
    with cluster(1, 2, time_scale=1, node=slow + ["--kv-blocks", "24"],
                 common=["--otlp-endpoint", "http://127.0.0.1:1"],
                 router=["--planned-prefill", "3", "--planned-decode", "2"]) as cl:
        port = cl.router.port("http")
        s = Scrape(cl, cl.router)
        assert s.value('tandem_router_planned_nodes{model_name="tiny",role="prefill"}') == 3
        missing = {n for n, row in LISTED.items() if row[3] in ("crowd", "imbalance", "option")}
        assert missing
        done = []

        def watch():
            while not done and missing:
                for one in scrapes(cl):
                    missing.difference_update([n for n in missing if one.moved(n)])

        def ask():
            for _ in range(5):  # on a busy machine one crowd may pass between two scrapes
                if missing:
                    in_threads([lambda i=i: chat(port, TEXT * (1 + i), max_tokens=10 + 40 * i, ignore_eos=True)
                                for i in (0, 1, 0, 1, 0, 1, 0, 1, 0)])
            done.append(True)

        in_threads([ask, watch])
        assert not missing, missing


def test_exchanges_of_ranks_are_counted_by_every_rank():
    with cluster(time_scale=1, tp={"prefill": 2, "decode": 2}) as cl:
        assert chat(cl.router.port("http"), TEXT, max_tokens=6, ignore_eos=True).status == 200
        for node in cl.nodes.values():
            role = node.name.split("-")[0]
            assert len(expected(role, "ranks")) == 4
            values = [cl.metrics(p) for p in node.processes]
            for rank, mine in enumerate(values):
                def of(name):
                    return sum(v for k, v in mine.items() if k.split("{")[0] == name)
                assert all(of(n) > 0 for n in expected(role, "ranks")), (node.name, rank, mine)
                assert any(f'rank="{rank}",size="2"' in k for k in mine if k.startswith("tandem_node_rank{")), mine
                known = {n for n, row in LISTED.items() if role in row[1]}
                families = {k.split("{")[0] for k in mine}
                assert rank == 0 or families <= known and "tandem_build_info" in families, families - known
            sent, received = ("tandem_node_rank_sent_bytes_total", "tandem_node_rank_received_bytes_total")
            assert total(values, sent) == total(values, received) > 0, (node.name, values)


def total(scraped, name):
    return sum(v for values in scraped for k, v in values.items() if k.split("{")[0] == name)


SLOW_TO_FALL = {"tandem_router_average_kv_usage_ratio", "tandem_router_saturation", "tandem_router_connections"}


def test_a_certificate_tells_when_it_ends():
    pem, key = certificate(days=30)
    engine = ["--engine-grpc", "--engine-grpc-port", "0", "--engine-grpc-tls-cert", pem, "--engine-grpc-tls-key", key]
    with cluster(time_scale=1, router=["--tls-cert", pem, "--tls-key", key], node=engine) as cl:
        for s in scrapes(cl):
            kind = "router" if s.role == "router" else "node"
            assert all(s.moved(n) for n in expected(s.role, "tls")) and expected(s.role, "tls")
            left = s.value(f"tandem_{kind}_tls_certificate_expires_seconds") - time.time()
            assert 29 * 86400 < left <= 30 * 86400, left
            assert s.value(f"tandem_{kind}_tls_loads_total") == 1


def test_calls_of_grpc_are_counted_by_method_and_status():
    ctl = os.path.join(BUILD, "ctl", "tandemctl")
    with cluster(time_scale=1, node=["--engine-grpc", "--engine-grpc-port", "0"]) as cl:
        for process, ports in ((cl.router, ("grpc", "admin")), (cl.nodes["prefill-0"], ("engine-grpc", "admin")),
                               (cl.nodes["decode-0"], ("engine-grpc", "admin"))):
            for port, service, code in ((ports[0], "", 0), (ports[1], "", 0), (ports[1], "no.Such", 1)):
                args = [ctl, "health", f"127.0.0.1:{process.port(port)}", "--service", service]
                assert subprocess.run(args, capture_output=True, timeout=30).returncode == code
            s = Scrape(cl, process)
            names = expected(s.role, "grpc")
            kind = "router" if s.role == "router" else "node"
            assert names and all(s.labels(n) == LISTED[n][2] | COMMON[kind] for n in names)
            counts = {k.split('grpc_code="')[1].rstrip('"}'): v for k, v in s.values.items()
                      if k.startswith(f"tandem_{kind}_grpc_requests_total") and 'grpc_method="Check"' in k}
            assert counts == {"OK": 2, "NOT_FOUND": 1}, counts


def test_gauges_show_what_runs_and_waits():
    slow = ["--fault", "step.pause=delay:us=40000"]
    with cluster(time_scale=1, node=slow + ["--max-num-seqs", "1"], router=["--node-queue", "2"]) as cl:
        port = cl.router.port("http")
        missing = {s.role: set(expected(s.role, "running")) for s in scrapes(cl)}
        assert all(missing.values())
        done = []

        def watch():
            while not done and any(missing.values()):
                for s in scrapes(cl):
                    missing[s.role] -= {n for n in missing[s.role] if s.moved(n)}

        def ask():
            in_threads([lambda: tokens_of(port, TEXT, max_tokens=12, ignore_eos=True) for _ in range(8)])
            done.append(True)

        in_threads([ask, watch])
        assert not any(missing.values()), missing
        for s in scrapes(cl):  # and they come back
            stuck = [n for n in expected(s.role, "running") if s.moved(n)]
            assert not set(stuck) - SLOW_TO_FALL, stuck


# names and labels, process, what is done to a cluster, and its extra arguments
def bad_request(cl):
    assert request(cl.router.port("http"), "POST", "/v1/completions", {"prompt": 7}).status == 400


def one_answer(cl):
    assert len(tokens_of(cl.router.port("http"), TEXT, max_tokens=4, ignore_eos=True)) == 4


def long_answer(cl):
    """Long enough for a lease to run out while it goes on."""
    assert len(tokens_of(cl.router.port("http"), TEXT, max_tokens=80, ignore_eos=True)) == 80


def no_prefill_node(cl):
    cl.nodes["prefill-0"].kill()
    wait_for(lambda: len(cl.admin("/nodes")["nodes"]) == 1, 20, "the router to give it up")  # until then it waits for the link
    assert get(cl.router.port("http"), "/health")[0] == 503
    assert chat(cl.router.port("http")).status == 503


def leave(cl):
    """A client that goes in mid-answer: the first token is the prefill node's."""
    s = Stream(cl.router.port("http"), max_tokens=100, ignore_eos=True)
    events = s.events()
    for _ in range(5):
        next(events)
    s.close()


def leave_early(cl):
    """A client that goes while its prompt is computed."""
    s = Stream(cl.router.port("http"), text=TEXT * 4, max_tokens=100, ignore_eos=True)
    wait_for(lambda: Scrape(cl, cl.nodes["prefill-0"]).moved("tandem_node_inflight_requests"), 10, "the prefill")
    s.close()


def crowd(cl):
    """More at once than the node takes; the router finds room for them later, or says that there is none."""
    in_threads([lambda: chat(cl.router.port("http"), TEXT) for _ in range(8)])


SLOW = ["--fault", "step.pause=delay:us=30000"]
FAILURES = [
    ("tandem_router_errors_total", 'error_code="bad_request"', "router", bad_request, {}),
    ("tandem_router_requests_total", 'code="400"', "router", bad_request, {}),
    ("tandem_router_admissions_total", 'outcome="rejected_no_node"', "router", no_prefill_node, {}),
    ("tandem_router_retries_total", "reason=", "router", one_answer, {"prefill_args": ["--fault", "step.fail=fail:times=1"]}),
    ("tandem_node_finished_total", 'reason="error"', "prefill-0", one_answer,
     {"prefill_args": ["--fault", "step.fail=fail:times=1"]}),
    ("tandem_node_kv_transfer_failures_total vllm:nixl_num_failed_transfers_total", "", "prefill-0", one_answer,
     {"prefill_args": ["--fault", "xfer.post.fail=fail:times=1"]}),
    ("tandem_node_kv_transfer_failures_total", 'reason="kv_mismatch"', "decode-0", one_answer,
     {"prefill_args": ["--fault", "kv.header.flip=fail:times=1"]}),
    ("tandem_node_kv_refused_slices_total vllm:nixl_num_failed_transfers_total", "", "decode-0", one_answer,
     {"prefill_args": ["--fault", "kv.header.flip=fail:times=1"]}),
    ("tandem_node_kv_expired_requests_total vllm:nixl_num_kv_expired_reqs_total", "", "prefill-0", one_answer,
     {"time_scale": 0.1, "decode_args": ["--fault", "xfer.table.drop=fail:times=1"]}),
    ("tandem_node_kv_transfer_notify_failures_total vllm:nixl_num_failed_notifications_total", "", "prefill-0", long_answer,
     {"time_scale": 0.1, "decode_args": ["--fault", "xfer.ack.drop=fail:times=1,step.pause=delay:us=60000"]}),
    ("tandem_node_cancellations_total", 'phase="decode"', "decode-0", leave, {"decode_args": SLOW}),
    ("tandem_node_cancellations_total", 'phase="prefill"', "prefill-0", leave_early,
     {"prefill_args": SLOW + ["--prefill-chunk", "16", "--max-num-batched-tokens", "16"]}),
    ("tandem_node_refused_total", 'code="overloaded"', "prefill-0", crowd,
     {"prefill_args": SLOW + ["--max-num-seqs", "1", "--max-queue", "1"]}),
]


def test_error_counters_move_by_the_failure_they_name():
    for names, labels, where, provoke, options in FAILURES:
        with cluster(**{"time_scale": 1, **options}) as cl:
            process = next(p for p in processes(cl) if p.name == where)

            def counts():
                values = Scrape(cl, process).values
                return [sum(v for k, v in values.items() if k.split("{")[0] == n and labels in k) for n in names.split()]

            before = counts()
            provoke(cl)
            wait_for(lambda: all(a > b for a, b in zip(counts(), before)), 10, f"{names} {{{labels}}} of {where} to move")


def test_every_error_counter_is_provoked():
    provoked = {(name, f[2].split("-")[0]) for f in FAILURES for name in f[0].split()}
    missing = {(n, r) for n, row in LISTED.items() for r in row[1] if row[3] == "error"} - provoked
    assert not missing, missing


def test_the_vllm_names_can_be_left_out():
    with cluster(time_scale=1, node=["--no-metrics-compat"]) as cl:
        text = cl.fetch(f"http://127.0.0.1:{cl.nodes['decode-0'].port('admin')}/metrics")
        assert "vllm:" not in text and "tandem_node_kv_blocks" in text


if __name__ == "__main__":
    run(globals())
