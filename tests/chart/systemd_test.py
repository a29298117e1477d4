"""The systemd units: systemd finds no fault, the programs take their commands and files, and serve under their filters."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
from harness import BUILD, ROOT, SCRATCH, Process, chat, get, run, tiny_model, unexpected_lines, wait_for  # noqa: E402

UNITS = os.path.join(ROOT, "deploy", "systemd")
ROLES = ("router", "prefill", "decode")
RANKS = ("prefill-rank", "decode-rank")
MAX_EXPOSURE = 2.0  # of systemd-analyze security; 10 is unconfined

if shutil.which("systemd-analyze") is None:
    print("1..0 # SKIP no systemd-analyze: apt-get install systemd")
    sys.exit(0)


def unit(role):
    return os.path.join(UNITS, f"tandem-{role}{'@' if role in RANKS else ''}.service")


def setting(role, key):
    with open(unit(role), encoding="ascii") as f:
        return re.search(rf"^{key}=(.*)$", f.read(), re.M).group(1)


def command(role, credentials, files=UNITS, instance="1"):
    """ExecStart with our program, our files and the credentials' folder."""
    words = setting(role, "ExecStart").split()
    name = "tandem-" + role.replace("-rank", "")
    assert words[0] == f"/usr/bin/{name}", words
    program = os.path.join(BUILD, "router" if role == "router" else "", name)
    return [program] + [w.replace("%d", credentials).replace("%i", instance).replace("/etc/tandem", files) for w in words[1:]]


def credentials():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    with open(os.path.join(folder, "cluster.key"), "w", encoding="ascii") as f:
        f.write("k1 0123456789abcdef0123456789abcdef\n")
    return folder


def group_files():
    """/etc/tandem where the two lines of a node of several processes count, on any port that is free."""
    folder = tempfile.mkdtemp(dir=SCRATCH)
    for role in ("prefill", "decode"):
        with open(os.path.join(UNITS, role + ".yaml"), encoding="ascii") as f:
            text, n = re.subn(r"^# (?=tensor-parallel-size: 2$|rank-listen: )", "", f.read(), flags=re.M)
        assert n == 2, text
        with open(os.path.join(folder, role + ".yaml"), "w", encoding="ascii") as f:
            f.write(text)
        shutil.copy(os.path.join(UNITS, role + "-rank.yaml"), folder)
    return folder


def test_systemd_finds_no_fault_with_the_units():
    for role in ROLES + RANKS:
        said = subprocess.run(["systemd-analyze", "verify", unit(role)], capture_output=True, text=True, check=False)
        lines = [line for line in (said.stdout + said.stderr).splitlines() if "is not executable" not in line]
        assert not lines, lines


def test_the_units_leave_little_exposed():
    for role in ROLES + RANKS:
        said = subprocess.run(["systemd-analyze", "security", "--no-pager", "--offline=true", unit(role)], capture_output=True,
                              text=True, check=True).stdout
        level = float(re.search(r"exposure level for \S+: ([0-9.]+)", said).group(1))
        assert level <= MAX_EXPOSURE, (role, level)


def test_a_unit_waits_longer_for_the_end_than_its_program():
    for role in ROLES + RANKS:
        with open(os.path.join(UNITS, role + ".yaml"), encoding="ascii") as f:
            drain = float(re.search(r"^drain-timeout: (\S+)$", f.read(), re.M).group(1))
        assert drain + 10 <= float(setting(role, "TimeoutStopSec")), role


def test_the_programs_take_their_commands_and_files():
    for role in ROLES + RANKS:
        argv = command(role, credentials())
        done = subprocess.run(argv + ["--check-config"], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, (argv, done.stderr)
        with open(argv[argv.index("--config") + 1], encoding="ascii") as f:
            listens = re.findall(r"^(?:host|admin-host|listen): (\S+)$", f.read(), re.M)
        assert listens and all("127.0.0.1" in a for a in listens), f"{role}: the files as they are serve one host only"


def test_the_processes_of_a_node_are_told_the_same_of_its_engine():
    files = group_files()
    for role in ("prefill", "decode"):
        told = []
        for part in (role, role + "-rank"):
            argv = command(part, credentials(), files) + ["--print-config"]
            text = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout
            told.append(dict(re.findall(r"^([a-z-]+): (.*)$", text, re.M)))
        node, rank = told
        differ = {k for k in node if node[k] != rank[k]} - {"cluster-key-file"}
        assert {"rank", "rank-leader"} <= differ <= {"rank", "rank-leader", "rank-listen", "listen", "admin-port"}, (role, differ)
        assert rank["rank-leader"] == node["rank-listen"], role


def test_the_services_answer_under_the_units_filters():
    serve([], {})


def test_a_node_of_two_services_answers_and_its_end_is_the_ranks():
    files = group_files()
    serve(["decode"], {role: files for role in ("decode", "decode-rank")})


def serve(groups, files):
    """The services as the units start them, those of `groups` as nodes of two processes; one answer; a good end."""
    folder, keys, model = tempfile.mkdtemp(dir=SCRATCH), credentials(), tiny_model()
    started = []

    def start(role, *args):
        argv = [sys.executable, os.path.join(HERE, "confine.py"), unit(role), "--"]
        argv += command(role, keys, files.get(role, UNITS)) + ["--model", model, "--admin-port", "0"]
        started.append(Process(folder, role, argv + list(args)).start())
        return started[-1]

    def start_node(role):
        sizes = ["--threads", "1", "--kv-memory", "0.1"]
        node = start(role, "--listen", "tcp://127.0.0.1:0", "--rank-listen", "127.0.0.1:0", *sizes)
        if role in groups:
            start(role + "-rank", "--rank-leader", "127.0.0.1:" + node.ports(want="ranks")["ranks"], *sizes)
        return node.ports()["control"]
    try:
        urls = [start_node(role) for role in ("prefill", "decode")]
        router = start("router", "--port", "0", "--grpc-port", "0", "--node", urls[0], "--node", urls[1])
        port = router.port("http")
        wait_for(lambda: get(port, "/readyz")[0] == 200, 60, "the router to be ready")
        answer = chat(port)
        assert answer.status == 200, answer.body
        ranks = [p for p in started if p.name.endswith("-rank")]
        assert len(ranks) == len(groups)
        for p in reversed([p for p in started if p not in ranks]):
            assert p.stop() == 0, p.log()[-2000:]
        for p in ranks:
            assert p.wait(30) == 0, p.log()[-2000:]  # by the goodbye of rank 0
        for p in started:
            assert not unexpected_lines(p), unexpected_lines(p)
    finally:
        for p in started:
            p.stop()


def test_the_filter_does_confine():
    argv = [sys.executable, os.path.join(HERE, "confine.py"), unit("decode"), "--", "/bin/sh", "-c", "exec unshare --mount true"]
    assert subprocess.run(argv, stderr=subprocess.DEVNULL, check=False).returncode != 0
    argv[-1] = "exec mount -t tmpfs none /mnt"
    assert subprocess.run(argv, stderr=subprocess.DEVNULL, check=False).returncode == -31  # SIGSYS


run(globals())
