"""Grafana dashboards and Prometheus rules, written from the tables in this file into the chart's files/.

    python3 deploy/grafana/gen.py            # write
    python3 deploy/grafana/gen.py --check    # fail when a file is not what the tables say

A panel is a title, a unit, a sentence that helps to diagnose, and its expressions. An alert is a value and a threshold, so
that tests/dashboards can ask a live Prometheus for the value alone. Standard library only.
"""
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FILES = os.path.join(ROOT, "deploy", "helm", "tandem", "files")
SELECT = 'namespace=~"$namespace",model_name=~"$model_name"'
RATE = "$__rate_interval"


def rate(name, by="", more=""):
    """Sum of a counter's rate, kept apart by labels."""
    inside = f"rate({name}{{{SELECT}{more}}}[{RATE}])"
    return f"sum by ({by}) ({inside})" if by else f"sum({inside})"


def quantile(q, name, by="", more=""):
    labels = ", ".join(x for x in ("le", by) if x)
    return f"histogram_quantile({q}, sum by ({labels}) (rate({name}_bucket{{{SELECT}{more}}}[{RATE}])))"


def quantiles(name, by="", more=""):
    label = f" {{{{{by}}}}}" if by else ""
    return [(quantile(q, name, by, more), f"p{int(100 * q)}{label}") for q in (0.5, 0.99)]


def gauge(name, more="", by="", how="sum"):
    inside = f"{name}{{{SELECT}{more}}}"
    return f"{how} by ({by}) ({inside})" if by else f"{how}({inside})"


ROLE = ',role=~"$role"'

# title of a row -> panels: (title, unit, help, [(expression, legend)])
OPERATIONS = {
    "What clients see": [
        ("Requests", "reqps", "API answers by status. 429: full; 503: no usable pair; 499: clients that left.",
         [(rate("tandem_router_requests_total", "code"), "{{code}}")]),
        ("Time to first token", "s", "High while the queue panels are flat: prompts are long or prefill is slow. High with them: "
         "more arrives than the nodes take.", quantiles("tandem_router_time_to_first_token_seconds")),
        ("Time between tokens", "s", "Grows with the batch of the decode nodes, and with prompts that they compute themselves.",
         quantiles("tandem_router_inter_token_latency_seconds")),
        ("Request duration", "s", "From submission to the end.", quantiles("tandem_router_request_seconds")),
        ("Tokens", "short", "Prompt tokens taken and output tokens given, a second.",
         [(rate("tandem_router_prompt_tokens_sum"), "prompt"), (rate("tandem_router_output_tokens_sum"), "output")]),
        ("Errors", "reqps", "By code of the API error; docs/runbooks says what to do about the frequent ones.",
         [(rate("tandem_router_errors_total", "error_code"), "{{error_code}}")]),
        ("gRPC calls by status", "reqps", "All methods, both ports; statuses: docs/grpc.md. CANCELLED: clients that left.",
         [(rate("tandem_router_grpc_requests_total", "grpc_code"), "{{grpc_code}}")]),
        ("gRPC errors by method", "reqps", "Calls that did not end with OK, without health checks. INTERNAL is a bug.",
         [(rate("tandem_router_grpc_requests_total", "grpc_method, grpc_code",
                ',grpc_code!="OK",grpc_service!="grpc.health.v1.Health"'), "{{grpc_method}} {{grpc_code}}")]),
    ],
    "Router": [
        ("Requests in the router", "short", "Queued ones wait for a pair with room; running ones are on nodes.",
         [(gauge("tandem_router_queued_requests"), "queued"), (gauge("tandem_router_running_requests"), "running"),
          (gauge("tandem_router_connections"), "connections")]),
        ("Wait in the queue", "s", "Above zero: every pair is full. Compare with the balance board: which role?",
         quantiles("tandem_router_queue_seconds")),
        ("Admission", "reqps", "Ends of admission.", [(rate("tandem_router_admissions_total", "outcome"), "{{outcome}}")]),
        ("Placement time", "s", "The core's step that placed a request.", quantiles("tandem_router_scheduler_seconds")),
        ("Replays", "reqps", "Attempts that failed on their nodes and were tried elsewhere, by reason.",
         [(rate("tandem_router_retries_total", "reason"), "{{reason}}")]),
        ("Predicted against measured", "s", "How far the placement's prediction of the first token is off.",
         quantiles("tandem_router_predictor_error_seconds")),
    ],
    "Nodes": [
        ("Ready nodes", "short", "Nodes that take new work, by role.", [(gauge("tandem_router_ready_nodes", by="role", how="max"),
         "{{role}}")]),
        ("KV use", "percentunit", "Share of blocks neither free nor cached, by node.",
         [(gauge("tandem_node_kv_usage_ratio", ROLE, "node", "max"), "{{node}}")]),
        ("Requests on nodes", "short", "Works that a node knows.", [(gauge("tandem_node_inflight_requests", ROLE, "node"),
         "{{node}}")]),
        ("Engine step", "s", "Execution of one step.", quantiles("tandem_node_step_seconds", "role", ROLE)),
        ("Processor", "short", "Cores used by each process.",
         [(f"sum by (instance) (rate(process_cpu_seconds_total{{{SELECT}}}[{RATE}]))", "{{instance}}")]),
        ("Memory", "bytes", "Resident memory of each process.",
         [(f"max by (instance) (process_resident_memory_bytes{{{SELECT}}})", "{{instance}}")]),
        ("Certificate", "s", "Until the one that a router or a node shows ends; empty without TLS.",
         [(f"min by (instance) (tandem_router_tls_certificate_expires_seconds{{{SELECT}}} > 0 or "
           f"tandem_node_tls_certificate_expires_seconds{{{SELECT}}} > 0) - time()", "{{instance}}")]),
        ("Cancelled", "reqps", "Clients that left, by the phase their request was in.",
         [(rate("tandem_node_cancellations_total", "phase", ROLE), "{{phase}}")]),
        ("gRPC calls on nodes", "reqps", "By method and status: probes of the admin ports and, with --engine-grpc, what outside "
         "routers ask.",
         [(rate("tandem_node_grpc_requests_total", "grpc_method, grpc_code", ROLE), "{{grpc_method}} {{grpc_code}}")]),
        ("Loop stalls", "short", "Callbacks over 250 ms, a second; anything above zero delays every stream of that process.",
         [(f"sum by (instance) (rate(tandem_router_loop_stalls_total{{{SELECT}}}[{RATE}]))", "router {{instance}}"),
          (rate("tandem_node_loop_stalls_total", "node", ROLE), "{{node}}")]),
    ],
}

BALANCE = {
    "The two roles": [
        ("Role pressure", "percentunit", "One number a role, the one to scale by: the higher one is what more nodes would help.",
         [(f"max by (role) (tandem:role_pressure{{{SELECT}}})", "{{role}}")]),
        ("Ready nodes", "short", "Against the plan (--planned-prefill, --planned-decode) where there is one.",
         [(gauge("tandem_router_ready_nodes", by="role", how="max"), "{{role}} ready"),
          (gauge("tandem_router_planned_nodes", by="role", how="max"), "{{role}} planned")]),
        ("P:D ratio", "short", "Ready prefill nodes for each ready decode node.", [(f"max(tandem:pd_ratio{{{SELECT}}})", "P:D")]),
        ("Saturation", "percentunit", "How full the nodes of a stage are on average.",
         [(gauge("tandem_router_saturation", by="stage", how="max"), "{{stage}}")]),
        ("Imbalance", "percentunit",
         "Standard deviation of KV use among the nodes of a role: high while the mean is low means that "
         "placement sees something that you do not (explain a request).",
         [(gauge("tandem_router_stddev_kv_usage_ratio", by="role", how="max"), "{{role}}")]),
        ("Placements", "reqps", "prefill-decode: split over a pair; decode-only: decode computed the prompt too.",
         [(rate("tandem_router_disagg_decisions_total", "decision"), "{{decision}}")]),
    ],
    "Prefill": [
        ("Prompt tokens waiting", "short", "The work ahead of each prefill node.",
         [(gauge("tandem_node_queued_prompt_tokens", ',role="prefill"', "node"), "{{node}}")]),
        ("Wait before the first chunk", "s", "High: more prefill nodes, or larger steps (--max-num-batched-tokens).",
         quantiles("tandem_node_prefill_queue_seconds", more=',role="prefill"')),
        ("Prompt tokens computed", "short", "A second and node.", [(rate("vllm:prompt_tokens_total", "node"), "{{node}}")]),
        ("Tokens of a step", "short", "Small steps on a waiting queue: blocks are out, not compute.",
         quantiles("tandem_node_batch_tokens", "role")),
    ],
    "Decode": [
        ("Running requests", "short", "The batch of each decode node.", [(gauge("vllm:num_requests_running", ',role="decode"',
         "node"), "{{node}}")]),
        ("Wait for the batch", "s", "From the hand-over to the first decode step.", quantiles("tandem_node_decode_queue_seconds")),
        ("Blocks by state", "short", "The states add up to the pool. Quarantined ones wait for a peer to be fenced.",
         [(gauge("tandem_node_kv_blocks", ROLE, "state"), "{{state}}")]),
        ("Output tokens", "short", "A second and node.", [(rate("vllm:generation_tokens_total", "node", ROLE), "{{node}}")]),
        ("Waiting requests", "short", "capacity: for blocks; deferred: for KV on its way.",
         [(gauge("vllm:num_requests_waiting_by_reason", ROLE, "reason"), "{{reason}}")]),
        ("Time per output token", "s", "A request's mean, measured on the node.",
         quantiles("vllm:request_time_per_output_token_seconds")),
    ],
}

TRANSFER = {
    "How fast": [
        ("Throughput", "Bps", "KV pushed, by transport. tcp where rdma or shm was meant: `tandemctl doctor --cluster`.",
         [(rate("tandem_node_kv_transfer_transport_bytes_total", "transport"), "{{transport}}")]),
        ("Duration", "s", "From the first to the last byte of a request; it overlaps with the prefill.",
         quantiles("tandem_node_kv_transfer_seconds", more=',role="prefill"')),
        ("Exposed", "s", "What was left when the prefill had ended: the part that a client waits for.",
         quantiles("tandem_node_kv_transfer_exposed_seconds")),
        ("Size", "bytes", "KV bytes of a request.", quantiles("tandem_node_kv_transfer_bytes", more=',role="prefill"')),
        ("Until the block table", "s", "From a prompt's arrival until decode has told where its KV goes.",
         quantiles("tandem_node_kv_transfer_bootstrap_seconds")),
        ("Until the blocks", "s", "From a reservation's arrival until it has its blocks: high means that decode is full.",
         quantiles("tandem_node_kv_transfer_alloc_seconds")),
    ],
    "What waits": [
        ("On prefill", "short", "Prompts without a block table, and computed prompts that are not handed over yet.",
         [(gauge("tandem_node_prefill_prealloc_queue_requests"), "no table"),
          (gauge("tandem_node_prefill_inflight_queue_requests"), "handing over")]),
        ("On decode", "short", "Requests without blocks, and requests whose KV has not all arrived.",
         [(gauge("tandem_node_decode_prealloc_queue_requests"), "no blocks"),
          (gauge("tandem_node_decode_transfer_queue_requests"), "landing")]),
        ("Prompt tokens without blocks", "percentunit", "As a share of the pool, by node.",
         [(gauge("tandem_node_pending_prealloc_token_ratio", by="node", how="max"), "{{node}}")]),
    ],
    "What fails": [
        ("Failed transfers", "reqps", "By reason; each one is replayed.", [(rate("tandem_node_kv_transfer_failures_total",
         "reason"), "{{reason}}")]),
        ("Given up", "reqps", "KV that decode did not take in time, and hand-overs that it did not acknowledge.",
         [(rate("tandem_node_kv_expired_requests_total"), "expired"), (rate("tandem_node_kv_transfer_notify_failures_total"),
          "unacknowledged")]),
        ("Slices not placed", "short", "Refused: malformed. Stale: of an older attempt. Dropped: nobody waited any more.",
         [(rate("tandem_node_kv_refused_slices_total"), "refused"), (rate("tandem_node_kv_stale_slices_total"), "stale"),
          (rate("tandem_node_kv_dropped_slices_total"), "dropped")]),
        ("Quarantined and parked blocks", "short", "Parked: waiting for decode. Quarantined: a peer may still write them.",
         [(gauge("tandem_node_kv_blocks", ',state=~"parked|quarantined"', "state"), "{{state}}")]),
    ],
}

BOARDS = {
    "operations": ("tandem / operations", OPERATIONS),
    "pd-balance": ("tandem / prefill-decode balance", BALANCE),
    "kv-transfer": ("tandem / KV transfer", TRANSFER),
}


def variable(name, query, label):
    return {"name": name, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2, "sort": 1, "includeAll": True,
                "multi": True,
            "allValue": ".*", "current": {"text": "All", "value": "$__all"}}


def panel(spec, number, x, y):
    title, unit, text, targets = spec
    return {"id": number, "type": "timeseries", "title": title, "description": text,
            "datasource": {"type": "prometheus", "uid": "${datasource}"}, "gridPos": {"h": 8, "w": 8, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}},
                "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
            "targets": [{"refId": chr(65 + i), "expr": expr, "legendFormat": legend, "datasource": {"type": "prometheus",
                "uid": "${datasource}"}}
                        for i, (expr, legend) in enumerate(targets)]}


def board(uid, title, rows):
    panels, y = [], 0
    for name, specs in rows.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": name, "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        for i, spec in enumerate(specs):
            panels.append(panel(spec, len(panels) + 1, 8 * (i % 3), y + 1 + 8 * (i // 3)))
        y += 1 + 8 * ((len(specs) + 2) // 3)
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}, "refresh": 1}
    return {"uid": "tandem-" + uid, "title": title, "tags": ["tandem", "llm"], "schemaVersion": 39, "editable": True,
        "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "panels": panels,
            "links": [{"type": "dashboards", "tags": ["tandem"], "title": "tandem", "asDropdown": False, "includeVars": True,
                       "keepTime": True}],
            "templating": {"list": [
                source, variable("namespace", "label_values(tandem_build_info, namespace)", "Namespace"),
                variable("model_name", 'label_values(tandem_build_info{namespace=~"$namespace"}, model_name)', "Model"),
                variable("role", 'label_values(tandem_node_uptime_seconds{namespace=~"$namespace"}, role)', "Role")]}}


# ---- rules ----

KEEP = "namespace, model_name"
TTFT_SLO, ITL_SLO, GOAL = "2.5", "0.1", 0.99  # seconds that count as good (bounds of buckets); share that must be


def late(name, slo, window):
    """Share of observations above the objective."""
    return (f'1 - sum by ({KEEP}) (rate({name}_bucket{{le="{slo}"}}[{window}])) '
            f"/ sum by ({KEEP}) (rate({name}_count[{window}]))")


TTFT, ITL = "tandem_router_time_to_first_token_seconds", "tandem_router_inter_token_latency_seconds"
RECORDING = {
    "tandem:role_pressure": f"max by ({KEEP}, role) (label_replace(tandem_router_saturation{{stage=~\"prefill|decode\"}}, "
                            '"role", "$1", "stage", "(.+)"))',
    "tandem:pd_ratio": f'max by ({KEEP}) (tandem_router_ready_nodes{{role="prefill"}}) '
                       f'/ max by ({KEEP}) (tandem_router_ready_nodes{{role="decode"}})',
    "tandem:requests:rate5m": f"sum by ({KEEP}) (rate(tandem_router_requests_total[5m]))",
    "tandem:server_errors:ratio5m": f'(sum by ({KEEP}) (rate(tandem_router_requests_total{{code=~"5.."}}[5m])) '
                                    f"or 0 * sum by ({KEEP}) (rate(tandem_router_requests_total[5m]))) "
                                    f"/ sum by ({KEEP}) (rate(tandem_router_requests_total[5m]))",
    "tandem:output_tokens:rate5m": f"sum by ({KEEP}) (rate(tandem_router_output_tokens_sum[5m]))",
    "tandem:kv_transfer_bytes:rate5m": f"sum by ({KEEP}, transport) (rate(tandem_node_kv_transfer_transport_bytes_total[5m]))",
    "tandem:ttft_seconds:p99_5m": f"histogram_quantile(0.99, sum by ({KEEP}, le) (rate({TTFT}_bucket[5m])))",
    "tandem:itl_seconds:p99_5m": f"histogram_quantile(0.99, sum by ({KEEP}, le) (rate({ITL}_bucket[5m])))",
    "tandem:ttft_late:ratio5m": late(TTFT, TTFT_SLO, "5m"),
    "tandem:ttft_late:ratio1h": late(TTFT, TTFT_SLO, "1h"),
    "tandem:itl_late:ratio5m": late(ITL, ITL_SLO, "5m"),
    "tandem:itl_late:ratio1h": late(ITL, ITL_SLO, "1h"),
}
BURN = round(14.4 * (1 - GOAL), 6)  # spends 2 % of a month's budget in an hour

# name: (value, threshold, for, severity, summary)
ALERTS = {
    "TandemNoReadyNode": (f"max by ({KEEP}, role) (tandem_router_ready_nodes)", "== 0", "1m", "critical",
                          "No {{ $labels.role }} node takes work for {{ $labels.model_name }}"),
    "TandemProcessDown": ("(1 - up) * on (namespace, instance) group_left (model_name) "
                          "max by (namespace, instance, model_name) (last_over_time(tandem_build_info[1h]))", "> 0", "2m",
                              "warning",
                          "{{ $labels.instance }} is not scraped: it is down, or its figures are stale"),
    "TandemServerErrors": ("tandem:server_errors:ratio5m", "> 0.05", "5m", "critical",
                           "{{ $value | humanizePercentage }} of the answers are server errors"),
    "TandemTtftSloBurn": ("min by (namespace, model_name) (tandem:ttft_late:ratio5m or tandem:ttft_late:ratio1h)", f"> {BURN}",
        "2m", "critical",
                          f"{{{{ $value | humanizePercentage }}}} of first tokens took longer than {TTFT_SLO} s"),
    "TandemItlSloBurn": ("min by (namespace, model_name) (tandem:itl_late:ratio5m or tandem:itl_late:ratio1h)", f"> {BURN}", "2m",
        "critical",
                         f"{{{{ $value | humanizePercentage }}}} of tokens came more than {ITL_SLO} s after the one before"),
    "TandemRoleSaturated": ("tandem:role_pressure", "> 0.9", "10m", "warning",
                            "The {{ $labels.role }} nodes of {{ $labels.model_name }} are {{ $value | humanizePercentage }} full"),
    "TandemKvNearlyFull": (f"max by ({KEEP}, role, node) (tandem_node_kv_usage_ratio)", "> 0.95", "5m", "warning",
                           "{{ $labels.node }} has used {{ $value | humanizePercentage }} of its KV blocks"),
    "TandemNodesOffPlan": ("max by (namespace, model_name, role) (tandem_router_ready_nodes) "
                           "- on (namespace, model_name, role) max by (namespace, model_name, role) (tandem_router_planned_nodes)",
                           "!= 0", "10m", "warning", "{{ $value }} {{ $labels.role }} nodes beside the plan"),
    "TandemTransferFailures": (f"sum by ({KEEP}, node, reason) (rate(tandem_node_kv_transfer_failures_total[5m]))", "> 0.02", "5m",
        "warning",
                               "KV transfers of {{ $labels.node }} fail: {{ $labels.reason }}"),
    "TandemKvExpired": (f"sum by ({KEEP}, node) (increase(tandem_node_kv_expired_requests_total[10m]))", "> 2", "5m", "warning",
                        "{{ $labels.node }} gave up KV that no decode node took"),
    "TandemBlocksQuarantined": (f'sum by ({KEEP}, node) (tandem_node_kv_blocks{{state="quarantined"}})', "> 0", "10m", "warning",
                                "{{ $value }} blocks of {{ $labels.node }} do not come back"),
    "TandemReplays": (f"sum by ({KEEP}, reason) (rate(tandem_router_retries_total[5m]))", "> 0.1", "10m", "warning",
                      "Requests are replayed: {{ $labels.reason }}"),
    "TandemCertificateExpires": (f"min by ({KEEP}, instance) (tandem_router_tls_certificate_expires_seconds > 0 "
                                 "or tandem_node_tls_certificate_expires_seconds > 0) - time()",
                                 f"< {7 * 86400}", "1h", "warning",
                                 "The certificate of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}"),
    "TandemLoopStalls": ("max by (namespace, model_name, instance) (increase(tandem_node_loop_stalls_total[10m]) "
                         "or increase(tandem_router_loop_stalls_total[10m]))", "> 2", "5m", "warning",
                         "The event loop of {{ $labels.instance }} stands still for 250 ms and more"),
}


def burn(name):
    """Both windows must burn: the long one says that it matters, the short one that it goes on."""
    return f"tandem:{name}:ratio5m {{0}} and tandem:{name}:ratio1h {{0}}"


def alert_expr(name):
    value, threshold = ALERTS[name][:2]
    if name.endswith("SloBurn"):
        series = "ttft_late" if "Ttft" in name else "itl_late"
        return burn(series).format(threshold)
    return f"{value} {threshold}"


def quoted(text):
    return json.dumps(text)  # a JSON string is a YAML one


def rules():
    out = ["# Written by deploy/grafana/gen.py: edit there. Runbooks: docs/runbooks.", "groups:", "  - name: tandem-recording",
        "    rules:"]
    for name, expr in RECORDING.items():
        out += [f"      - record: {name}", f"        expr: {quoted(expr)}"]
    out += ["  - name: tandem-alerts", "    rules:"]
    for name, (_, _, wait, severity, summary) in ALERTS.items():
        out += [f"      - alert: {name}", f"        expr: {quoted(alert_expr(name))}", f"        for: {wait}",
                "        labels:", f"          severity: {severity}", "        annotations:",
                    f"          summary: {quoted(summary)}",
                f"          runbook_url: {quoted(f'docs/runbooks/{name}.md')}"]
    return "\n".join(out) + "\n"


def files():
    """{path: text}."""
    out = {os.path.join(FILES, "rules", "tandem.yaml"): rules()}
    for uid, (title, rows) in BOARDS.items():
        text = json.dumps(board(uid, title, rows), indent=1, sort_keys=True) + "\n"
        out[os.path.join(FILES, "dashboards", f"{uid}.json")] = text
    return out


def main():
    stale = []
    for path, text in files().items():
        old = open(path, encoding="utf-8").read() if os.path.exists(path) else None
        if old == text:
            continue
        stale.append(os.path.relpath(path, ROOT))
        if "--check" not in sys.argv:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
    if stale and "--check" in sys.argv:
        sys.exit("not what deploy/grafana/gen.py writes: " + ", ".join(stale))


if __name__ == "__main__":
    main()
