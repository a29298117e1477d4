"""Runs clang-tidy over the C files of a build within a time budget, what a change touches first.

    python3 tests/tidy.py --build build/clang --cache build/tidy --budget 180 [file...]

A file is clean when it passed once with the same text of everything it includes from this repository, the same flags
and the same .clang-tidy; that fact is kept under --cache. Files that differ from the upstream branch come first and may
take twice the budget, so that a change is looked at; then those that include one, then the rest, each beginning at another
place for each commit: a checkout without a cache reaches every file within some commits. What the budget does not reach is
counted on the last line, not failed; every finding fails. --budget 3600 looks at all files.
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
    """path relative to the root: compiler arguments without output and dependency options, folder, object."""
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
        commands.setdefault(path, (kept, entry["directory"], entry["output"]))
    return commands


def load_includes(build):
    """object: the files of this repository, generated ones too, that it was compiled from, as ninja noted them."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    includes, names = {}, None
    for line in listed.splitlines():
        if line.startswith("    "):
            path = os.path.relpath(os.path.join(build, line.strip()))
            if not path.startswith(".."):
                names.add(path)
        elif ": #deps" in line:
            names = includes.setdefault(line.split(": #deps", 1)[0], set())
    return includes


def changed_files():
    """Files that differ from the upstream branch, or were last committed, or are not committed."""
    found = set()
    for args in (["diff", "--name-only", "origin/main...HEAD"], ["diff", "--name-only", "HEAD~10", "HEAD"],
                 ["ls-files", "-mo", "--exclude-standard"]):
        done = subprocess.run(["git", *args], capture_output=True, text=True, check=False)
        found.update(done.stdout.splitlines())
    return found


def commit_number():
    done = subprocess.run(["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True, check=False)
    return int(done.stdout or 0)


class Tidy:
    def __init__(self, options):
        self.commands = load_commands(options.build)
        self.includes = load_includes(options.build)
        self.cache = options.cache
        self.number = commit_number()
        self.changed = changed_files().union(options.files)
        self.start, self.budget = time.monotonic(), options.budget
        os.makedirs(self.cache, exist_ok=True)

    def order(self, path):
        """Sorts: changed files, those that include one (rooms first: a finding there weighs more), the others."""
        touched = not self.changed.isdisjoint(self.includes.get(self.commands[path][2], ()))
        at = int(hashlib.sha256(path.encode()).hexdigest()[:8], 16) / 0x100000000
        at = (at - self.number * 0.381966) % 1  # steps of the golden section begin everywhere on a circle, evenly
        return path not in self.changed, not touched, touched and path.startswith("tests/"), at

    def fingerprint(self, path):
        """Hash of the file, what it includes from this repository, its flags and the configuration; None when it has no parse."""
        args, _, output = self.commands[path]
        if output not in self.includes:
            return None
        h = hashlib.sha256("\0".join(args).encode())
        for name in [*CONFIGS, *sorted(self.includes[output])]:
            with open(name, "rb") as f:
                h.update(f.read())
        return h.hexdigest()

    def run(self, path):
        """'clean', 'cached', 'late' or the findings."""
        args, directory, _ = self.commands[path]
        key = self.fingerprint(path)
        mark = os.path.join(self.cache, key) if key else None
        if mark and os.path.exists(mark):
            return path, "cached"
        if time.monotonic() - self.start > self.budget * (2 if path in self.changed else 1):
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
    parser.add_argument("--budget", type=float, default=180)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    tidy = Tidy(options)
    unknown = [p for p in options.files if p not in tidy.commands]
    if unknown:
        sys.exit(f"not compiled in {options.build}: {' '.join(unknown)}")
    paths = options.files or sorted(tidy.commands, key=tidy.order)
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
