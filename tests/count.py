"""Counts the tests in meson's testlog.json: the subtests of TAP tests, one for every other test.

A TAP test that crashed or timed out after its last "ok" counts as one more failure. Prints "N passed, N failed".
"""
import json
import re
import sys

GOOD = {"OK", "EXPECTEDFAIL", "SKIP"}


def count(test):
    """(passed, failed) of one line of the log."""
    lines = (test.get("stdout") or "").splitlines()
    good = bad = 0
    for line in lines:
        if re.match(r"ok\b", line):
            good += 0 if re.search(r"#\s*SKIP", line, re.IGNORECASE) else 1
        elif re.match(r"not ok\b", line):
            bad += 1
    if test["result"] in GOOD:
        return (good if good else int(test["result"] != "SKIP"), 0)
    return good, max(bad, 1)


def broken(test):
    """The subtests of a failed TAP test that failed, and the last words before each: logs get lost, a summary is read."""
    words = []
    for line in (test.get("stdout") or "").splitlines():
        if re.match(r"not ok\b", line):
            yield "; ".join([line, *words[-2:]])[:400]
        words = words + [line.strip("# ")] if line.startswith("#") else []


def main():
    passed = failed = 0
    slow = []
    try:
        with open(sys.argv[1], encoding="utf-8") as f:
            tests = [json.loads(line) for line in f if line.strip()]
    except OSError:
        print("no test has run", file=sys.stderr)
        print("0 passed, 1 failed")
        return
    for test in tests:
        good, bad = count(test)
        passed += good
        failed += bad
        slow.append((test["duration"], test["name"]))
        if test["result"] == "SKIP":
            print(f"skipped {test['name']}", file=sys.stderr)
        if bad:
            print(f"FAILED {test['name']}: {test['result']}", file=sys.stderr)
            for line in broken(test):
                print(f"FAILED {test['name']}: {line}", file=sys.stderr)
    for seconds, name in sorted(slow, reverse=True)[:5]:
        print(f"slowest: {seconds:6.1f} s {name}", file=sys.stderr)
    print(f"{passed} passed, {failed} failed")


main()
