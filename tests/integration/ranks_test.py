"""Nodes of several processes: the tokens of one, any order of starting, ranks that die, are told to end, do not belong."""
import os
import random
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.request

from harness import (BUILD, ROOT, SCRATCH, Both, Group, Process, Stream, all_blocks_back, certificate, cluster, free_port, get,
                     in_threads, key_file, run, tiny_model, tokens_of, unexpected_lines, wait_for)

# Four KV heads: two ranks have two each, three have one, one and two.
MODEL = tiny_model(seed=5, layers=3, heads=8, kv_heads=4)
CHUNKS = ["--prefill-chunk", "48", "--max-num-batched-tokens", "64"]
SLOW_STEPS = ["--fault", "step.pause=delay:us=50000"]
TEXT = "the life of one request on many processes " * 4
TOKENS = 20
OVER = "the group of ranks is over"


def prompts():
    rng = random.Random(7)
    out = []
    for i, n in enumerate([1, 2, 15, 16, 17, 33, 64, 65, 120, 200, 320, 500]):
        text = " ".join(rng.choice("a river runs to the sea while seven lamps burn".split()) for _ in range(max(1, n // 2)))
        sampled = {} if i % 2 == 0 else {"temperature": 0.9, "seed": 50 + i, "top_k": 40 if i % 3 == 0 else 0, "top_p": 0.95,
                                         "repetition_penalty": 1.1 if i % 4 == 1 else 1.0}
        out.append((text, dict(sampled, max_tokens=[2, 9, 24][i % 3], ignore_eos=True)))
    return out


PROMPTS = prompts()


def all_tokens(port, at_once=6):
    jobs = [lambda p=p, f=f: tokens_of(port, p, **f) for p, f in PROMPTS]
    return [t for i in range(0, len(jobs), at_once) for t in in_threads(jobs[i:i + at_once])]


with Both(MODEL) as whole:
    REFERENCE = all_tokens(whole.port)
    WANTED = tokens_of(whole.port, TEXT, max_tokens=TOKENS, ignore_eos=True)


def check(tokens, reference=None):
    for i, (want, got) in enumerate(zip(reference or REFERENCE, tokens)):
        assert want == got, f"prompt {i} {PROMPTS[i]}: {want} != {got}"


# ---- the tokens ----

def run_split(prefill, decode, model=MODEL, reference=None, node=()):
    with cluster(1, 1, model=model, time_scale=1, tp={"prefill": prefill, "decode": decode}, node=CHUNKS + list(node)) as cl:
        check(all_tokens(cl.router.port("http")), reference)
        assert {n["name"]: n["ranks"] for n in cl.admin("/nodes")["nodes"]} == {"prefill-0": prefill, "decode-0": decode}
        for node in cl.nodes.values():
            all_blocks_back(cl, node)
            assert not unexpected_lines(node), unexpected_lines(node)
        status = cl.stop()
        assert not any(status.values()), status


def test_the_reference_is_worth_comparing_with():
    assert len({tuple(t) for t in REFERENCE}) == len(REFERENCE) and len({i for t in REFERENCE for i in t}) > 20


def test_nodes_of_one_process_each():
    run_split(1, 1)


def test_a_prefill_node_of_two_processes_and_a_decode_node_of_one():
    run_split(2, 1)


def test_a_prefill_node_of_one_process_and_a_decode_node_of_two():
    run_split(1, 2)


def test_a_prefill_node_of_three_processes_and_a_decode_node_of_two():
    run_split(3, 2)


def test_over_tcp():
    run_split(2, 2, node=["--kv-transports", "tcp,self"])


def test_a_sliding_window_is_handed_on_as_far_as_it_shows():
    model = tiny_model(seed=5, layers=3, heads=8, kv_heads=4, window=40)
    with Both(model) as both:
        reference = all_tokens(both.port)
    assert reference != REFERENCE
    run_split(2, 3, model, reference)


def test_two_processes_serve_alone():
    with Both(MODEL, CHUNKS, tp=2) as both:
        check(all_tokens(both.port))
        follower = both.proc.followers[0]
        assert get(follower.port("admin"), "/readyz")[0] == 200
        assert both.proc.stop() == 0, both.proc.log()
        assert "rank 0 has said goodbye" in follower.log()


# ---- deaths ----

def ids_of(event):
    return [i for c in event.get("choices", []) for i in c.get("token_ids") or []]


def node_of(cl, role):
    name = next(n["name"] for n in cl.admin("/nodes")["nodes"] if n["role"] == role and n["inflight"])
    return cl.nodes[name]


def check_end(group, killed):
    """Every process of the group is gone: the killed one by its signal, the others by themselves and not with success."""
    for p in group.processes:
        status = p.wait(30)
        if p is killed:
            assert status == -signal.SIGKILL, (p.name, status)
        else:
            assert status is not None and status > 0, (p.name, status)
            assert [line for line in p.log().splitlines() if "level=error" in line and OVER in line], p.log()[-2000:]


def lose_a_rank(cl, role, seen, rank):
    """kill -9 in the middle of a stream; the answer goes on elsewhere, the group ends and is started again."""
    s = Stream(cl.router.port("http"), "/v1/completions", prompt=TEXT, max_tokens=TOKENS, ignore_eos=True, return_token_ids=True)
    got, error = [], None
    try:
        if seen == 0:
            wait_for(lambda: any(n["inflight"] for n in cl.admin("/nodes")["nodes"] if n["role"] == role), 20, "the request")
            group = node_of(cl, role)
            group.processes[rank].kill()
        for event in s.events():
            error = event.get("error", error)
            got += ids_of(event)
            if 0 < seen <= len(got):
                seen = 0
                group = node_of(cl, role)
                group.processes[rank].kill()
    finally:
        s.close()
    assert error is None and s.done and got == WANTED, (role, rank, error, got)
    check_end(group, group.processes[rank])
    cl.restart(group.name)
    cl.wait_ready(cl.n_prefill, cl.n_decode)


def test_a_lost_rank_ends_its_decode_node_and_the_answer_goes_on_elsewhere():
    with cluster(1, 2, model=MODEL, tp={"decode": 2}, decode_args=SLOW_STEPS) as cl:
        lose_a_rank(cl, "decode", 3, 1)
        lose_a_rank(cl, "decode", 3, 0)
        for node in cl.nodes.values():
            all_blocks_back(cl, node)


def test_a_lost_rank_ends_its_prefill_node_in_the_middle_of_a_prompt():
    with cluster(2, 1, model=MODEL, tp={"prefill": 2}, prefill_args=SLOW_STEPS + ["--prefill-chunk", "16"]) as cl:
        lose_a_rank(cl, "prefill", 0, 1)
        lose_a_rank(cl, "prefill", 0, 0)
        for node in cl.nodes.values():
            all_blocks_back(cl, node)


def test_an_idle_group_notices_a_lost_rank_too():
    for rank in (0, 2):
        with Both(MODEL, tp=3) as both:
            both.proc.processes[rank].kill()
            check_end(both.proc, both.proc.processes[rank])


def test_a_frozen_rank_is_waited_for_no_longer_than_told():
    with Both(MODEL, ["--rank-timeout", "1"], tp=2) as both:
        follower = both.proc.followers[0]
        follower.signal(signal.SIGSTOP)
        s = Stream(both.port)  # nobody reads its end: the process that serves it goes with its group
        assert both.proc.wait(30) == 1
        s.close()
        assert [line for line in both.proc.log().splitlines() if OVER in line and "transfer_stalled" in line], both.proc.log()
        follower.signal(signal.SIGCONT)
        assert follower.wait(30) == 1 and OVER in follower.log(), follower.log()


# ---- told to end ----

def test_sigterm_to_all_processes_under_load_lets_every_request_finish():
    slow = ["--fault", "step.pause=delay:us=20000"]
    with cluster(1, 1, model=MODEL, time_scale=1, tp={"prefill": 2, "decode": 2}, node=slow) as cl:
        streams = [Stream(cl.router.port("http"), "/v1/completions", prompt=TEXT, max_tokens=TOKENS, ignore_eos=True,
                          return_token_ids=True) for _ in range(4)]
        events = [s.events() for s in streams]
        got = [ids_of(next(e)) for e in events]
        processes = [p for node in cl.nodes.values() for p in node.processes]
        for p in processes:
            p.signal(signal.SIGTERM)
        followers = [p for node in cl.nodes.values() for p in node.followers]
        in_threads([lambda i=i: got[i].extend(t for e in events[i] for t in ids_of(e)) for i in range(4)])
        assert all(s.done for s in streams) and got == [WANTED] * 4, got
        assert [p.wait(30) for p in processes] == [0] * len(processes), [(p.name, p.log()[-1500:]) for p in processes]
        for p in followers:
            assert "draining" in p.log() and "rank 0 has said goodbye" in p.log(), p.log()


def test_a_second_sigterm_ends_a_rank_at_once_and_with_it_the_group():
    with Both(MODEL, tp=2) as both:
        follower = both.proc.followers[0]
        follower.signal(signal.SIGTERM)
        wait_for(lambda: get(follower.port("admin"), "/readyz")[0] == 503, 20, "the rank to drain")
        assert get(follower.port("admin"), "/livez")[0] == 200 and both.proc.alive()
        check([tokens_of(both.port, p, **f) for p, f in PROMPTS[:2]])  # it goes on while rank 0 needs it
        follower.signal(signal.SIGTERM)
        assert follower.wait(30) == 0
        assert both.proc.wait(30) == 1 and OVER in both.proc.log(), both.proc.log()[-2000:]


def test_a_rank_that_is_told_to_end_waits_for_rank_0_no_longer_than_its_drain_limit():
    with Both(MODEL, ["--drain-timeout", "0"], tp=2) as both:
        follower = both.proc.followers[0]
        follower.signal(signal.SIGTERM)
        assert follower.wait(30) == 0 and "drain ended at its limit" in follower.log(), follower.log()
        assert both.proc.wait(30) == 1 and OVER in both.proc.log(), both.proc.log()


def processes_in(folder):
    """Process numbers of a cluster, by its folder in their command lines."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                if folder + "/" in f.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def test_a_second_interrupt_of_up_leaves_nobody_behind():
    up = subprocess.Popen([sys.executable, os.path.join(ROOT, "deploy", "local", "demo.py"), "--build", BUILD, "--model", MODEL,
                           "--up", "--tp", "2", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          start_new_session=True)
    folder = next(line for line in up.stdout if "logs: " in line).split("logs: ")[1].strip()
    running = processes_in(folder)
    assert len(running) == 5, running
    for pid in running:
        os.kill(pid, signal.SIGSTOP)  # they do not end when they are told to
    up.send_signal(signal.SIGINT)
    assert any("stopping" in line for line in up.stdout)
    up.send_signal(signal.SIGINT)
    up.stdout.read()
    assert up.wait(30) != 0 and not processes_in(folder), processes_in(folder)


# ---- joining ----

class Ranks:
    """Processes of one group to be, each started when the test says so."""

    def __init__(self, size, listen=None):
        self.size, self.leader, self.keys = size, listen or f"127.0.0.1:{free_port()}", key_file()
        self.folder, self.started = tempfile.mkdtemp(dir=SCRATCH), []

    def start(self, rank, name=None, model=MODEL, keys=None, args=()):
        argv = [os.path.join(BUILD, "tandem-prefill"), "--role", "both", "--model", model, "--port", "0", "--admin-port", "0",
                "--router-admin-port", "0", "--grpc-port", "0", "--threads", "1", "--served-model-name", "tiny",
                "--cluster-key-file", keys or self.keys, "--name", name or f"rank{rank}", "--tensor-parallel-size",
                str(self.size), "--rank", str(rank)]
        argv += ["--rank-listen", self.leader] if rank == 0 else ["--rank-leader", self.leader]
        self.started.append(Process(self.folder, name or f"rank{rank}", argv + list(args)).start())
        return self.started[-1]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for p in self.started:
            p.signal(signal.SIGKILL)
            p.wait(10)


def test_ranks_start_in_any_order():
    with Ranks(3) as ranks:
        pem, key = certificate()
        others = [ranks.start(2), ranks.start(1, args=["--admin-tls-cert", pem, "--admin-tls-key", key])]
        for p in others:
            wait_for(lambda p=p: "rank" in p.log(), 30, "a rank to say something")
        leader = ranks.start(0)
        port = leader.port("http")
        wait_for(lambda: get(port, "/health")[0] == 200, 30, "the group to serve")
        check([tokens_of(port, p, **f) for p, f in PROMPTS[:4]])
        with urllib.request.urlopen(f"https://127.0.0.1:{others[1].port('admin')}/metrics", timeout=20,
                                    context=ssl.create_default_context(cafile=pem)) as page:
            assert 'rank="1",size="3"' in page.read().decode()
        leader.signal(signal.SIGTERM)
        assert [p.wait(30) for p in [leader] + others] == [0, 0, 0]


def test_a_node_is_not_ready_before_its_slowest_rank_has_loaded():
    with Ranks(2) as ranks:
        brief = ["--rank-timeout", "0.5"]
        leader = ranks.start(0, args=brief)
        other = ranks.start(1, args=brief + ["--fault", "rank.load=delay:us=2000000"])
        port = leader.port("http")  # published when all have loaded
        wait_for(lambda: get(port, "/health")[0] == 200, 30, "the group to serve")
        check([tokens_of(port, p, **f) for p, f in PROMPTS[:1]])
        assert "all ranks have loaded" in leader.log()
        leader.signal(signal.SIGTERM)
        assert [leader.wait(30), other.wait(30)] == [0, 0], (leader.log()[-2000:], other.log()[-2000:])


def test_a_model_that_cannot_be_cut_so_often_is_refused_before_anybody_is_waited_for():
    with Ranks(5) as ranks:
        for rank in (0, 1):
            p = ranks.start(rank)
            assert p.wait(30) == 2 and "larger than this model can be cut" in p.log() and "most=4" in p.log(), p.log()


def test_a_group_that_does_not_come_together_is_stopped_like_any_other():
    with Ranks(3) as ranks:
        group = Group(ranks.folder, "group", [os.path.join(BUILD, "tandem-prefill"), "--role", "both", "--model", MODEL, "--port",
                                              "0", "--admin-port", "0", "--router-admin-port", "0", "--grpc-port", "0",
                                              "--cluster-key-file", ranks.keys, "--name", "group", "--fault",
                                              "rank.join=fail"], 3).start()
        wait_for(lambda: all("dialing again" in p.log() for p in group.followers), 30, "ranks that do not get in")
        assert group.stop() == 0 and [p.wait(0) for p in group.followers] == [0, 0], [p.log()[-500:] for p in group.processes]


def test_rank_0_may_be_told_to_end_while_others_load():
    with Ranks(2) as ranks:
        leader, other = ranks.start(0), ranks.start(1, args=["--fault", "rank.load=delay:us=2000000"])
        wait_for(lambda: "cpu engine ready" in leader.log(), 30, "rank 0 to have loaded")
        leader.signal(signal.SIGTERM)
        assert [leader.wait(30), other.wait(30)] == [0, 0], (leader.log()[-2000:], other.log()[-2000:])


def test_who_does_not_belong_is_refused_in_words_and_rank_0_waits_on():
    with Ranks(2) as ranks:
        leader = ranks.start(0)
        leader.ports(want="ranks")
        wrong = [
            ("the secret", ranks.start(1, "wrong-secret", keys=key_file()), ("secret",)),
            ("the model", ranks.start(1, "wrong-model", model=tiny_model(seed=6, layers=3, heads=8, kv_heads=4)), ("model",)),
            ("a size", ranks.start(1, "wrong-blocks", args=["--kv-blocks", "40"]), ("blocks",)),
            ("the numerics", ranks.start(1, "wrong-numerics", args=["--numerics", "f32"]), ("numerics",)),
        ]
        larger = Ranks(3, ranks.leader)
        larger.keys = ranks.keys
        with larger:
            wrong.append(("the number of ranks", larger.start(2, "wrong-rank"), ("rank", "size")))
            for what, p, words in wrong:
                assert p.wait(30) not in (None, 0), (what, p.log()[-2000:])
                errors = [line for line in p.log().splitlines() if "level=error" in line]
                assert any(w in line for line in errors for w in words), (what, p.log()[-2000:])
        second = ranks.start(0, "second-leader")
        assert second.wait(30) == 1 and "cannot listen for ranks" in second.log(), second.log()
        assert "Address already in use" in second.log() and "tandem-prefill" in second.log(), second.log()
        assert leader.alive(), leader.log()[-2000:]
        refused = [line for line in leader.log().splitlines() if "level=warn" in line and "rank refused" in line]
        assert len(refused) == len(wrong), refused
        right = ranks.start(1)
        port = leader.port("http")
        wait_for(lambda: get(port, "/health")[0] == 200, 30, "the group to serve")
        leader.signal(signal.SIGTERM)
        assert [leader.wait(30), right.wait(30)] == [0, 0]


def test_a_place_that_is_taken_is_refused_to_a_second_process():
    with Ranks(3) as ranks:
        leader, first = ranks.start(0), ranks.start(1)
        wait_for(lambda: "joined rank 0" in first.log(), 30, "the first to join")
        twin = ranks.start(1, "twin")
        assert twin.wait(30) not in (None, 0) and "there already" in twin.log(), twin.log()
        ranks.start(2)
        wait_for(lambda: get(leader.port("http"), "/health")[0] == 200, 30, "the group to serve")
        assert first.alive()


def test_a_group_that_does_not_come_together_in_time_ends_in_words():
    with Ranks(2) as ranks:
        leader, other = ranks.start(0, args=["--rank-join-timeout", "1"]), None
        assert leader.wait(30) == 1 and "level=error" in leader.log() and "missing" in leader.log(), leader.log()
        other = ranks.start(1, args=["--rank-join-timeout", "1"])
        assert other.wait(30) == 1 and "level=error" in other.log(), other.log()


def test_rank_0_alone_says_who_is_missing_until_it_is_told_to_end():
    with Ranks(3) as ranks:
        leader, other = ranks.start(0), ranks.start(2)
        wait_for(lambda: [s for s in leader.log().splitlines() if "missing" in s and "1" in s.split("missing", 1)[1]], 60,
                 "a line about the missing rank")
        assert leader.alive() and other.alive()
        for p in (leader, other):
            p.signal(signal.SIGTERM)
            assert p.wait(30) == 0, p.log()[-2000:]


if __name__ == "__main__":
    run(globals())
