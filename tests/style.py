"""Checks what clang-format and clang-tidy do not: ASCII sources, file lengths, leftovers, commit titles.

    python3 tests/style.py

Prints one line per violation; exits 1 when there is any.
"""
import os
import re
import subprocess
import sys

SOURCE = (".c", ".h", ".cu", ".cuh", ".cpp", ".hpp", ".proto", ".py", ".sh", "meson.build")
MAX_C_LINES = 1200
LINE_LIMIT = 132  # of Python; C is wrapped by clang-format
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
TITLE = re.compile(r"^[a-z0-9_.-]+((/|, )[a-z0-9_.-]+)*: [a-z].*[^. ]$")
TITLE_LENGTH = 72
# Commits of the first session, in which many hands wrote at once, are not measured by it.
TITLES_SINCE = "2026-11-30T00:00:00Z"


def git(*args):
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout


def check_file(path):
    with open(path, "rb") as f:
        data = f.read()
    lines = data.split(b"\n")
    if path.endswith(".c") and len(lines) > MAX_C_LINES:
        yield f"{path}: {len(lines)} lines, at most {MAX_C_LINES}"
    if data and not data.endswith(b"\n"):
        yield f"{path}: no newline at the end"
    for number, line in enumerate(lines, 1):
        if any(b > 126 or (b < 32 and b != 9) for b in line):
            yield f"{path}:{number}: not US-ASCII"
        if line.endswith((b" ", b"\t")):
            yield f"{path}:{number}: space at the end of the line"
        if b"\t" in line:
            yield f"{path}:{number}: tab"
        if path.endswith(".py") and len(line) > LINE_LIMIT:
            yield f"{path}:{number}: {len(line)} columns, at most {LINE_LIMIT}"
        if path != "tests/style.py" and LEFTOVER.search(line.decode("ascii", "replace")):
            yield f"{path}:{number}: leftover: {line.decode('ascii', 'replace').strip()}"


def check_titles():
    for line in git("log", "--since", TITLES_SINCE, "--no-merges", "--format=%h %s").splitlines():
        commit, title = line.split(" ", 1)
        if len(title) > TITLE_LENGTH:
            yield f"commit {commit}: title of {len(title)} characters, at most {TITLE_LENGTH}: {title}"
        if not TITLE.match(title):
            yield f"commit {commit}: title is not 'room/module: imperative': {title}"


def main():
    files = [p for p in git("ls-files", "-co", "--exclude-standard").splitlines()
             if p.endswith(SOURCE) and os.path.isfile(p)]
    problems = [problem for path in files for problem in check_file(path)]
    problems += check_titles()
    print("\n".join(problems) if problems else f"{len(files)} files, no violation")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
