"""Runs clang-tidy over the C files of a build, changed files first, within a time budget.

    python3 tests/tidy.py --build build/clang --cache build/tidy --budget 300 [file...]

A file is clean when it passed once with the same text of everything it includes from this repository, the same flags
and the same .clang-tidy; that fact is kept under --cache. Files that differ from the upstream branch come first, so
that a change is always looked at; what the budget does not reach is counted on the last line, not failed.
"""
import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor


CONFIGS = (".clang-tidy", "tests/.clang-tidy")


def load_commands(build):
    """path relative to the root: compiler arguments without output and dependency options."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        entries = json.load(f)
    commands = {}
    for entry in entries:
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]))
        if not path.endswith(".c") or path.startswith(("..", build)):
            continue
        args = shlex.split(entry["command"])[1:]
        kept, skip = [], False
        for arg in args:
            if skip:
                skip = False
            elif arg in ("-o", "-MF", "-MQ"):
                skip = True
            elif arg not in ("-c", "-MD", entry["file"]):
                kept.append(arg)
        commands.setdefault(path, (kept, entry["directory"]))
    return commands


def fingerprint(path, args, directory):
    """Hash of the file, its headers in this repository, its flags and the configuration; None when it has no parse."""
    source = os.path.relpath(path, directory)
    done = subprocess.run(["clang", *args, "-MM", source], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    names = done.stdout.replace("\\\n", " ").split(":", 1)[1].split()
    h = hashlib.sha256("\0".join(args).encode())
    for name in [*(os.path.relpath(c, directory) for c in CONFIGS), *sorted(names)]:
        with open(os.path.join(directory, name), "rb") as f:
            h.update(f.read())
    return h.hexdigest()


def changed_files():
    """Files that differ from the upstream branch, or were last committed, or are not committed."""
    found = set()
    for args in (["diff", "--name-only", "origin/main...HEAD"], ["diff", "--name-only", "HEAD~10", "HEAD"],
                 ["ls-files", "-mo", "--exclude-standard"]):
        done = subprocess.run(["git", *args], capture_output=True, text=True, check=False)
        found.update(done.stdout.splitlines())
    return found


class Tidy:
    def __init__(self, options):
        self.commands = load_commands(options.build)
        self.cache = options.cache
        self.deadline = time.monotonic() + options.budget
        os.makedirs(self.cache, exist_ok=True)

    def run(self, path):
        """'clean', 'cached', 'late' or the findings."""
        args, directory = self.commands[path]
        key = fingerprint(path, args, directory)
        mark = os.path.join(self.cache, key) if key else None
        if mark and os.path.exists(mark):
            return path, "cached"
        if time.monotonic() > self.deadline:
            return path, "late"
        cmd = ["clang-tidy", "--quiet", os.path.relpath(path, directory), "--", *args]
        done = subprocess.run(cmd, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            if mark:
                with open(mark, "w", encoding="utf-8") as f:
                    f.write(path + "\n")
            return path, "clean"
        return path, done.stdout or done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--budget", type=float, default=300)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    tidy = Tidy(options)
    changed = changed_files()
    # Rooms before tests: a finding there weighs more.
    unknown = [p for p in options.files if p not in tidy.commands]
    if unknown:
        sys.exit(f"not compiled in {options.build}: {' '.join(unknown)}")
    paths = options.files or sorted(tidy.commands, key=lambda p: (p not in changed, p.startswith("tests/"), p))
    count = {"clean": 0, "cached": 0, "late": 0}
    bad = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, result in pool.map(tidy.run, paths):
            if result in count:
                count[result] += 1
            else:
                bad += 1
                print(f"{path}:\n{result}")
    print(f"{count['clean']} files clean, {count['cached']} known to be, {bad} with findings, "
          f"{count['late']} not reached in time")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
