"""Checks the rooms: who includes whom, which library stays behind which door, that every module has a test, that
every folder explains itself, and that headers compile alone.

    python3 tests/rooms.py [--build build/test]     (the build folder holds generated headers)

The arrows are those of docs/architecture.md. Prints one line per violation; exits 1 when there is any.
"""
import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# room: rooms that its files may include, besides itself.
COMMON = {"base", "io", "kv", "model", "text", "sched", "node"}
ROLE = COMMON | {"proto"}
ARROWS = {
    "base": set(),
    "proto": {"base"},
    "kernels": {"base"},
    "text": {"base"},
    "kv": {"base", "proto"},
    "sched": {"base", "proto"},
    "model": {"base", "kernels"},
    "io": {"base", "proto"},
    "node": {"base", "proto", "sched", "kv", "model", "text", "io"},
    "prefill-node": ROLE,
    "decode-node": ROLE,
    "router": ROLE,
    "ctl": ROLE,
}
# Single headers beyond the arrows, each with the reason.
HEADERS = {
    ("io", "common/model/engine.h"): "the transfer thread reads the engine's pool and layer counter through its vtable",
    ("io", "common/model/ranks.h"): "the group of ranks fills this vtable for the engine",
    ("text", "common/model/tok_data.h"): "the arrays in which common/model hands over what it read of a tokenizer",
    ("text", "common/model/hf_tok.h"): "the exporter writes the patterns that the reader of the same files knows",
}
FOLDER = {room: ("common/" + room if room in COMMON else room) for room in ARROWS}
ROLES = {"prefill-node", "decode-node", "router", "ctl"}

# Header pattern: the only folder whose files may include it.
DOORS = [
    (r"\.pb-c\.h$", "proto/"),
    (r"^(ucp|uct|ucs|ucm)/", "common/io/"),
    (r"^nng/", "common/io/"),
    (r"^event2/", "common/io/"),
    (r"^nghttp2/", "common/io/"),
    (r"^yaml\.h$", "common/base/"),
    (r"^pcre2\.h$|^utf8proc\.h$|^minizip/", "common/text/"),
    (r"^nccl\.h$|^cuda", "kernels/cuda/"),
]

# Pure files outside the pure rooms: they see only values and messages (design.md, 4).
PURE_ROOMS = {"sched", "kv"}
PURE_SYSTEM = {"assert.h", "errno.h", "float.h", "inttypes.h", "limits.h", "math.h", "stdalign.h", "stdarg.h",
               "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "openssl/evp.h",
               "openssl/sha.h", "openssl/hmac.h", "openssl/crypto.h"}

# Modules without a test of their own, each with the reason.
NO_TEST = {
    "router/rt_attempt.c": "part of rt_core, tested by rt_core_test",
    "router/rt_client.c": "part of rt_shell, tested by rt_shell_test",
    "ctl/health.c": "asks a running process: tests/integration/grpc_test.py",
    "proto/api_pb.c": "the check in front of every message of api.h, tested by api_test",
    "router/rt_probe.c": "part of rt_shell, tested by rt_admin_test",
    "router/rt_grpc_explain.c": "part of rt_shell, tested by rt_grpc_admin_test, ctl_test.py and grpc_test.py",
    "common/node/vllm.c": "the service's port, tested with stock clients by tests/integration/engine_grpc_test.py",
    "common/node/vllm_generate.c": "the service's calls, tested with stock clients by tests/integration/engine_grpc_test.py",
    "router/rt_http.c": "part of rt_shell, tested by rt_shell_test",
    "router/rt_front.c": "a table of rt_shell's functions; every test of --role both runs it",
}

# Folders that need no README: mirrors of rooms and data.
NO_README = re.compile(
    r"^(\.ci|kernels/cpu/.+|tests/unit(/.+)?|tests/(fuzz|golden|clients)/.+|deploy/.+|docs/.+)$")
README_LINES = 100

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    return sorted(p for p in out.stdout.splitlines() if os.path.isfile(p))


def room_of(path):
    for room, folder in FOLDER.items():
        if path.startswith(folder + "/"):
            return room
    return None


def includes(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        for number, line in enumerate(f, 1):
            m = INCLUDE.match(line)
            if m:
                yield number, m.group(1), m.group(2)


def check_include(path, room, bracket, name):
    """The violation that this include is, or None."""
    for pattern, folder in DOORS:
        if re.search(pattern, name) and not path.startswith(folder):
            return f"only {folder} may include {name}"
    if bracket == "<":
        if room in PURE_ROOMS and name not in PURE_SYSTEM:
            return f"the pure room {room} may not include <{name}>"
        return None
    target = room_of(name)
    if "/" not in name:
        return f'include "{name}" from the project root'
    if target is None:
        return f"{name} is in no room"
    if target == room or target in ARROWS[room] or (room, name) in HEADERS:
        return None
    if target in ROLES and os.path.basename(path) == "main.c":
        return None
    return f"{room} may not include {target} ({name})"


def check_includes(files):
    for path in files:
        room = room_of(path)
        if room is None or not path.endswith((".c", ".h", ".cu", ".cuh")):
            continue
        for number, bracket, name in includes(path):
            problem = check_include(path, room, bracket, name)
            if problem:
                yield f"{path}:{number}: {problem}"


def test_names(path, files):
    """Names under which the module that this .c belongs to may be tested, best first. A .c with a header of its own
    is a module; one without is a part of the module that its name starts with: gguf_read.c of gguf."""
    name = os.path.splitext(os.path.basename(path))[0]
    names = [name]
    while path[:-2] + ".h" not in files and "_" in name:
        name = name.rsplit("_", 1)[0]
        names.append(name)
    return names


def check_tests(files):
    """Each module of a room has tests/unit/<room>/<module>_test.c, registered there."""
    for path in files:
        room = room_of(path)
        if room is None or not path.endswith(".c") or path.endswith("/main.c") or path in NO_TEST:
            continue
        folder = "tests/unit/" + room
        names = test_names(path, files)
        tests = [n for n in names if f"{folder}/{n}_test.c" in files]
        if not tests:
            yield f"{path}: has no {folder}/{names[0]}_test.c"
            continue
        with open(folder + "/meson.build", encoding="utf-8") as f:
            registered = f.read()
        if not any(re.search(rf"'{re.escape(n)}(_test\.c)?'", registered) for n in tests):
            yield f"{folder}/{tests[0]}_test.c: is not registered in {folder}/meson.build"
    for path in sorted(set(NO_TEST) - set(files)):
        yield f"tests/rooms.py: NO_TEST names {path}, which is gone"


def check_readmes(files):
    folders = {os.path.dirname(p) for p in files}
    for folder in sorted(folders):
        if NO_README.match(folder):
            continue
        readme = os.path.join(folder, "README.md")
        if readme not in files:
            yield f"{readme}: missing"
            continue
        with open(readme, encoding="utf-8") as f:
            lines = sum(1 for _ in f)
        if folder and lines > README_LINES:
            yield f"{readme}: {lines} lines, at most {README_LINES}"


def compile_flags(build):
    modules = ["libevent", "jansson", "yaml-0.1", "libpcre2-8", "libutf8proc", "minizip", "libcrypto", "libprotobuf-c", "ucx"]
    out = subprocess.run(["pkg-config", "--cflags", *modules], check=True, capture_output=True, text=True)
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-DTD_VERSION=\"0\"", "-DTD_WITH_FAULTS=1", "-DTD_WITH_TRACE=0", "-I."]
    return flags + (["-I" + build] if build else []) + out.stdout.split()


def isa_flags(path):
    if "/avx512/" in path:
        return ["-mavx2", "-mfma", "-mf16c", *("-mavx512" + x for x in ("f", "bw", "dq", "vl", "vnni"))]
    return ["-mavx2", "-mfma", "-mf16c"] if "/avx2/" in path else []


def check_headers(files, build):
    flags = compile_flags(build)

    def alone(path):
        cmd = ["cc", *flags, *isa_flags(path), "-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-include", path,
               "/dev/null"]
        done = subprocess.run(cmd, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else f"{path}: does not compile alone\n{done.stderr}"

    headers = [p for p in files if p.endswith(".h") and room_of(p) and not p.startswith("kernels/cuda/")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from filter(None, pool.map(alone, headers))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", help="build folder with generated headers")
    args = parser.parse_args()
    files = tracked()
    problems = [*check_includes(files), *check_tests(files), *check_readmes(files)]
    problems += check_headers(files, args.build)
    print("\n".join(problems) if problems else f"{len(files)} files, no violation")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
