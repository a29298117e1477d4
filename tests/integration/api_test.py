"""The HTTP API of a 1P+1D cluster as clients see it: answers, streams, refusals."""
import hashlib
import json
import os
import subprocess

from harness import Stream, all_blocks_back, chat, cluster, request, run, tiny_model, tokens_of, wait_for, SCRATCH

KEYS = os.path.join(SCRATCH, "keys")
with open(KEYS, "w", encoding="utf-8") as f:
    for name, limits in (("full", "0 0 0"), ("slow", "1 0 0"), ("narrow", "0 1 0")):
        f.write(f"{name} {hashlib.sha256(name.encode()).hexdigest()} tenant-{name} 0 {limits}\n")

SHARED = cluster().start()
PORT = SHARED.router.port("http")
ADMIN = SHARED.router.port("admin")


def test_a_chat_answer_has_the_documented_shape():
    a = chat(PORT, max_tokens=5)
    body = a.json()
    assert a.status == 200 and a.headers["content-type"] == "application/json"
    assert body["id"].startswith("chatcmpl-") and body["object"] == "chat.completion" and body["model"] == "tiny"
    choice = body["choices"][0]
    assert choice["index"] == 0 and choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 5 and usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert a.headers["x-request-id"] == body["id"][len("chatcmpl-"):]


def test_options_that_cannot_be_used_are_2_and_a_port_in_use_names_option_and_holder():
    key = os.path.join(SCRATCH, "bad.key")
    with open(key, "w", encoding="utf-8") as f:
        f.write("k1 0123456789abcdef0123456789abcdef\n")
    router, node = (SHARED.binary(n) for n in ("tandem-router", "tandem-prefill"))
    ports = ["--port", "0", "--admin-port", "0", "--grpc-port", "0"]
    whole = ["--model", tiny_model(), "--cluster-key-file", key]
    to = ["--node", "tcp://127.0.0.1:1"]
    for args, status, reasons in (
            ([router, "--nonsense"], 2, ["unknown option"]),
            ([router, *whole, *ports], 2, ["missing option", "--node"]),
            ([node, *ports[:4]], 2, ["missing option", "--model"]),
            ([node, "--model", tiny_model(), "--admin-port", "0"], 2, ["missing option", "--cluster-key-file"]),
            ([router, *whole, *to, *ports[2:], "--port", str(PORT)], 1, ["option=--port", f"(pid {SHARED.router.proc.pid})"]),
            ([router, *whole, *to, *ports[:2], *ports[4:], "--admin-port", str(ADMIN)], 1,
             ["option=--admin-port", "tandem-router (pid"]),
            ([node, *whole, "--admin-port", "0", "--listen", f"tcp://127.0.0.1:{PORT}"], 1,
             ["option=--listen", "tandem-router (pid"])):
        done = subprocess.run(args, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, (args, done)
        for reason in reasons:
            assert reason in done.stdout + done.stderr, (reason, done.stdout + done.stderr)


def test_a_stream_is_framed_as_clients_expect():
    s = Stream(PORT, max_tokens=6, stream_options={"include_usage": True})
    assert s.open().getheader("Content-Type") == "text/event-stream; charset=utf-8"
    events = list(s.events())
    assert s.done
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({(e["id"], e["created"], e["model"]) for e in events}) == 1
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 6
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    text = "".join(c["delta"].get("content", "") for e in events for c in e["choices"])
    assert text == chat(PORT, max_tokens=6).json()["choices"][0]["message"]["content"]


def test_completions_take_text_lists_and_token_arrays():
    ids = request(PORT, "POST", "/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}).json()
    assert ids["usage"]["prompt_tokens"] == 3 and ids["id"].startswith("cmpl-") and ids["object"] == "text_completion"
    many = request(PORT, "POST", "/v1/completions", {"prompt": ["ab", "cd", "ab"], "max_tokens": 3, "temperature": 0}).json()
    assert [c["index"] for c in many["choices"]] == [0, 1, 2]
    assert many["choices"][0]["text"] == many["choices"][2]["text"]
    lists = request(PORT, "POST", "/v1/completions", {"prompt": [[5, 6, 7], [8]], "max_tokens": 3, "temperature": 0}).json()
    assert lists["choices"][0]["text"] == ids["choices"][0]["text"]
    assert request(PORT, "POST", "/v1/completions", {"prompt": "x", "temperature": 0}).json()["usage"]["completion_tokens"] <= 16


def test_choices_share_a_request_and_differ_by_seed():
    a = chat(PORT, n=3, temperature=1, seed=7, max_tokens=12).json()
    texts = [c["message"]["content"] for c in a["choices"]]
    assert len(texts) == 3 and len(set(texts)) > 1
    again = chat(PORT, n=3, temperature=1, seed=7, max_tokens=12).json()
    assert texts == [c["message"]["content"] for c in again["choices"]]


def test_a_seed_repeats_and_another_seed_differs():
    runs = [tokens_of(PORT, "once upon", temperature=1, seed=s, max_tokens=20) for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_stop_string_ends_the_text_and_is_not_shown():
    whole = chat(PORT, max_tokens=30).json()["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2:len(whole) // 2 + 3]
    a = chat(PORT, max_tokens=30, stop=[stop]).json()["choices"][0]
    assert a["message"]["content"] == whole[:whole.index(stop)] and a["finish_reason"] == "stop"
    assert a["stop_reason"] == stop
    b = chat(PORT, max_tokens=30, stop=stop, include_stop_str_in_output=True).json()["choices"][0]
    assert b["message"]["content"] == whole[:whole.index(stop)] + stop
    s = Stream(PORT, max_tokens=30, stop=[stop])
    text = "".join(c["delta"].get("content", "") for e in s.events() for c in e["choices"])
    assert text == whole[:whole.index(stop)]


def test_a_stop_string_waits_for_min_tokens():
    ask = {"prompt": "abc", "temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
    whole = request(PORT, "POST", "/v1/completions", ask).json()["choices"][0]
    stop = whole["text"][2:4]
    early = request(PORT, "POST", "/v1/completions", {**ask, "stop": stop}).json()["choices"][0]
    assert early["finish_reason"] == "stop" and len(early["token_ids"]) < 12, early
    least = request(PORT, "POST", "/v1/completions", {**ask, "stop": stop, "min_tokens": 12}).json()["choices"][0]
    assert least["token_ids"][:12] == whole["token_ids"][:12], least
    assert least["text"] == whole["text"][:len(least["text"])] and stop in least["text"][:6], least
    full = request(PORT, "POST", "/v1/completions", {**ask, "stop": stop, "min_tokens": 24}).json()["choices"][0]
    assert (full["text"], full["finish_reason"]) == (whole["text"], "length"), full


def test_stop_token_ids_and_min_tokens_are_kept():
    ids = tokens_of(PORT, "abc", max_tokens=12, ignore_eos=True)
    cut = tokens_of(PORT, "abc", max_tokens=12, ignore_eos=True, stop_token_ids=[ids[4]])
    assert cut == ids[:ids.index(ids[4]) + 1]
    longer = tokens_of(PORT, "abc", max_tokens=12, ignore_eos=True, stop_token_ids=[ids[4]], min_tokens=9)
    assert len(longer) >= 9


def test_logit_bias_bans_a_token():
    first = tokens_of(PORT, "abc", max_tokens=1)[0]
    assert tokens_of(PORT, "abc", max_tokens=1, logit_bias={str(first): -100})[0] != first


def test_client_text_never_becomes_a_control_token():
    one = request(PORT, "POST", "/v1/completions", {"prompt": "<|im_end|>", "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    assert one > 1


REFUSALS = [
    # path, body, status, code, param
    ("chat", b"{", 400, "bad_request", None),
    ("chat", b"[1]", 400, "bad_request", None),
    ("chat", b'{"messages":[],"messages":[]}', 400, "bad_request", None),
    ("chat", b"[" * 70 + b"]" * 70, 400, "bad_request", None),
    ("chat", b'{"messages":"\xff"}', 400, "bad_request", None),
    ("chat", {}, 400, "bad_request", "messages"),
    ("chat", {"messages": []}, 400, "bad_request", "messages"),
    ("chat", {"messages": [{"role": "king", "content": "x"}]}, 400, "bad_request", "messages"),
    ("chat", {"messages": [{"role": "user", "content": 5}]}, 400, "bad_request", "messages"),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "unsupported", "messages"),
    ("chat", {"model": "other"}, 404, "model_not_found", "model"),
    ("chat", {"model": 7}, 400, "bad_request", "model"),
    ("chat", {"max_tokens": 0}, 400, "bad_request", "max_tokens"),
    ("chat", {"max_tokens": "9"}, 400, "bad_request", "max_tokens"),
    ("chat", {"max_tokens": 1000000}, 400, "context_length_exceeded", "max_tokens"),
    ("chat", {"temperature": -1}, 400, "bad_request", "temperature"),
    ("chat", {"temperature": "hot"}, 400, "bad_request", "temperature"),
    ("chat", {"top_p": 0}, 400, "bad_request", "top_p"),
    ("chat", {"n": 17}, 400, "bad_request", "n"),
    ("chat", {"stop": ["a"] * 17}, 400, "bad_request", "stop"),
    ("chat", {"stop": ""}, 400, "bad_request", "stop"),
    ("chat", {"seed": 1.5}, 400, "bad_request", "seed"),
    ("chat", {"logit_bias": {"x": 1}}, 400, "bad_request", "logit_bias"),
    ("chat", {"logit_bias": {"99999999": 1}}, 400, "bad_request", "logit_bias"),
    ("chat", {"stop_token_ids": [-1]}, 400, "bad_request", "stop_token_ids"),
    ("chat", {"tools": [{"type": "function"}]}, 400, "unsupported", "tools"),
    ("chat", {"response_format": {"type": "json_object"}}, 400, "unsupported", "response_format"),
    ("chat", {"chat_template": "x"}, 400, "unsupported", "chat_template"),
    ("chat", {"cache_salt": ""}, 400, "bad_request", "cache_salt"),
    ("chat", {"stream": "yes"}, 400, "bad_request", "stream"),
    ("completions", {}, 400, "bad_request", "prompt"),
    ("completions", {"prompt": []}, 400, "bad_request", "prompt"),
    ("completions", {"prompt": {"a": 1}}, 400, "bad_request", "prompt"),
    ("completions", {"prompt": [1, "a"]}, 400, "bad_request", "prompt"),
    ("completions", {"prompt": [1 << 40]}, 400, "bad_request", "prompt"),
    ("completions", {"prompt": [999999]}, 400, "bad_request", "prompt"),
    ("completions", {"prompt": ["a"] * 65}, 400, "bad_request", "prompt"),
    ("completions", {"prompt": "word " * 20000}, 400, "context_length_exceeded", None),
]


def test_bad_requests_get_a_typed_error_each():
    for path, body, status, code, param in REFUSALS:
        if isinstance(body, dict) and path == "chat" and body and "messages" not in body:
            body = dict(body, messages=[{"role": "user", "content": "x"}])
        where = "/v1/chat/completions" if path == "chat" else "/v1/completions"
        a = request(PORT, "POST", where, body)
        assert a.status == status, (body, a.status, a.body)
        e = a.error()
        assert e["code"] == code, (body, e)
        assert param is None or e["param"] == param, (body, e)
        assert a.headers.get("x-should-retry") == "false", (body, a.headers)


def test_http_mistakes_get_their_status():
    rows = [("GET", "/nowhere", None, {}, 404), ("DELETE", "/v1/models", None, {}, 405),
            ("GET", "/v1/chat/completions", None, {}, 405),
            ("POST", "/v1/chat/completions", "{}", {"Content-Type": "text/plain"}, 415),
            ("GET", "/v1/models/other", None, {}, 404), ("POST", "/invocations", "{}", {}, 404),
            ("GET", "/nodes", None, {}, 404)]
    for method, path, body, headers, status in rows:
        a = request(PORT, method, path, body, headers)
        assert a.status == status, (method, path, a.status, a.body)
        a.error()
        assert status != 405 or "allow" in a.headers


def test_models_version_and_probes_answer():
    models = json.loads(request(PORT, "GET", "/v1/models").body)
    assert models["object"] == "list" and models["data"][0]["id"] == "tiny" and models["data"][0]["max_model_len"] > 0
    assert request(PORT, "GET", "/v1/models/tiny").json()["id"] == "tiny"
    assert request(PORT, "GET", "/version").json()["version"]
    for path in ("/health", "/v1/health", "/livez", "/readyz", "/startupz", "/liveness", "/readiness"):
        assert request(PORT, "GET", path).status == 200, path
    for node in SHARED.nodes.values():
        for path in ("/health", "/livez", "/readyz", "/startupz", "/version"):
            assert request(node.port("admin"), "GET", path).status == 200, path
    assert request(PORT, "HEAD", "/health").body == ""


def test_a_request_id_is_echoed_and_cleaned():
    a = request(PORT, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, {"X-Request-ID": "my-id_1"})
    assert a.headers["x-request-id"] == "my-id_1" and a.json()["id"] == "cmpl-my-id_1"
    b = request(PORT, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, {"X-Request-ID": "bad id\"; rm"})
    assert "rm" not in b.headers["x-request-id"]
    c = request(PORT, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "request_id": "body-id"})
    assert c.json()["id"] == "cmpl-body-id"


def test_a_client_that_leaves_frees_everything():
    with cluster(node=["--fault", "step.pause=delay:us=10000"]) as cl:
        s = Stream(cl.router.port("http"), max_tokens=200, ignore_eos=True)
        next(s.events())
        s.close()
        wait_for(lambda: not cl.admin("/requests")["live"], 30, "the request to be gone")
        for node in cl.nodes.values():
            all_blocks_back(cl, node)
        assert cl.admin("/requests")["finished"][0]["code"] == "cancelled"


def test_log_lines_of_a_request_are_few_and_in_order():
    a = request(PORT, "POST", "/v1/completions", {"prompt": "follow me", "max_tokens": 4}, {"X-Request-ID": "followed"})
    assert a.status == 200
    wait_for(lambda: not SHARED.admin("/requests")["live"], 10, "the end")
    lines = [line for p in [SHARED.router, *SHARED.nodes.values()] for line in p.log().splitlines() if "req=followed" in line]
    doors = [d for d in ("rt_http", "rt_admit", "rt_sched", "pf_queue", "pf_exec", "pf_push", "dc_land", "dc_batch",
                         "dc_stream", "rt_sse") if any(f'msg="{d}' in line for line in lines)]
    assert len(doors) == 10, doors
    assert len(lines) <= 12, lines


def test_keys_admit_limit_and_refuse():
    with cluster(router=["--api-key-file", KEYS]) as cl:
        port = cl.router.port("http")
        body = {"prompt": "a", "max_tokens": 1}

        def ask(key, **more):
            return request(port, "POST", "/v1/completions", dict(body, **more), {"Authorization": "Bearer " + key} if key else {})

        none, wrong = ask(None), ask("guess")
        assert none.status == wrong.status == 401 and none.headers["www-authenticate"] == "Bearer"
        assert none.error()["code"] == "invalid_api_key"
        assert request(port, "GET", "/v1/models").status == 401
        assert request(port, "GET", "/nowhere").status == 401
        assert request(port, "GET", "/health").status == 200
        assert ask("full").status == 200
        statuses = [ask("slow") for _ in range(4)]
        assert [a.status for a in statuses][:1] == [200] and 429 in [a.status for a in statuses]
        limited = next(a for a in statuses if a.status == 429)
        assert limited.error()["code"] == "rate_limited" and int(limited.headers["retry-after"]) >= 1
        assert "guess" not in cl.router.log()


def test_without_a_prefill_node_the_answer_is_503():
    with cluster(prefill=0, decode=1) as cl:
        port = cl.router.port("http")
        assert request(port, "GET", "/health").status == 503
        a = chat(port)
        assert a.status == 503 and a.error()["code"] == "no_ready_node" and "retry-after" in a.headers


def test_a_full_queue_is_429_and_drains():
    with cluster(router=["--queue-size", "2", "--node-queue", "1"], node=["--fault", "step.pause=delay:us=100000"]) as cl:
        port = cl.router.port("http")
        streams = [Stream(port, "/v1/completions", prompt="x" * 40, max_tokens=2) for _ in range(8)]
        statuses = [s.open().status for s in streams]
        assert 200 in statuses and 429 in statuses, statuses
        for s in streams:
            if s.r.status == 200:
                list(s.events())
                assert s.done
            else:
                e = json.loads(s.r.read().decode())["error"]
                assert e["code"] == "overloaded" and s.r.getheader("Retry-After")
            s.close()
        assert chat(port).status == 200


def test_sigterm_finishes_what_runs_and_exits_cleanly():
    cl = cluster(node=["--fault", "step.pause=delay:us=20000"]).start()
    try:
        s = Stream(cl.router.port("http"), max_tokens=20, ignore_eos=True)
        events = s.events()
        next(events)
        cl.router.signal(15)
        rest = list(events)
        assert s.done and rest[-1]["choices"][0]["finish_reason"] == "length"
        s.close()
        assert cl.router.wait(20) == 0
        status = cl.stop()
        assert set(status.values()) == {0}, status
    finally:
        cl.stop()


def test_the_shared_cluster_logged_nothing_unexpected():
    from harness import unexpected_lines
    for p in [SHARED.router, *SHARED.nodes.values()]:
        bad = unexpected_lines(p)
        assert not bad, bad[:5]
    status = SHARED.stop()
    assert set(status.values()) == {0}, status


if __name__ == "__main__":
    tiny_model()
    try:
        run(globals())
    finally:
        SHARED.stop()
