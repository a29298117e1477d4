"""Dashboards and rules without a Prometheus: they are what gen.py writes, name only metrics that docs/metrics.md lists, and each
alert has its runbook and its test. Standard library only."""
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "deploy", "grafana"))
import gen  # noqa: E402

OUTSIDE = {"up"}  # Prometheus' own


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def expressions():
    """(where, expression) of everything that is asked of Prometheus."""
    for uid, (_, rows) in gen.BOARDS.items():
        for specs in rows.values():
            for title, _, _, targets in specs:
                for expr, _ in targets:
                    yield f"{uid}: {title}", expr
    for name, expr in gen.RECORDING.items():
        yield name, expr
    for name in gen.ALERTS:
        yield name, gen.ALERTS[name][0]
        yield name, gen.alert_expr(name)


def names_in(expr):
    """Metric names of an expression: words that are neither labels, nor functions, nor keywords."""
    expr = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", "", expr)
    expr = re.sub(r"\b(by|on|group_left|ignoring|without) \([^)]*\)", "", expr)
    return {w for w in re.findall(r"[a-zA-Z_][\w:]*(?!\w*\()", expr) if "_" in w or ":" in w or w in OUTSIDE} - {
        "histogram_quantile", "label_replace", "last_over_time", "group_left"}


def test_the_files_are_what_the_generator_writes():
    for path, text in gen.files().items():
        with open(path, encoding="utf-8") as f:
            assert f.read() == text, f"run python3 deploy/grafana/gen.py: {path}"
    for kind in ("dashboards", "rules"):
        folder = os.path.join(gen.FILES, kind)
        assert {os.path.join(folder, n) for n in os.listdir(folder)} == {p for p in gen.files() if f"/{kind}/" in p}


def test_every_name_is_a_metric_that_is_served():
    listed = {}
    for line in read("docs", "metrics.md").splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if cells[0].startswith("`") and len(cells) > 4:
            listed[cells[0].strip("`")] = cells[1]
    series = set()
    for name, kind in listed.items():
        series |= {name + s for s in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    seen = set()
    for where, expr in expressions():
        names = names_in(expr)
        assert names, (where, expr)
        unknown = names - series - set(gen.RECORDING) - OUTSIDE
        assert not unknown, (where, unknown)
        seen |= names
    assert len(seen) > 50, seen


def test_dashboards_can_be_imported():
    ids = set()
    for uid, (title, rows) in gen.BOARDS.items():
        board = gen.board(uid, title, rows)
        assert board["schemaVersion"] >= 39 and board["uid"] not in ids
        ids.add(board["uid"])
        numbers = [p["id"] for p in board["panels"]]
        assert len(set(numbers)) == len(numbers)
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
        assert len(set(places)) == len(places)
        assert all(p["type"] == "row" or (p["description"] and p["targets"]) for p in board["panels"])
        assert {v["name"] for v in board["templating"]["list"]} == {"datasource", "namespace", "model_name", "role"}
        json.dumps(board)


def test_every_alert_has_a_runbook_and_a_test():
    tests = read("tests", "dashboards", "rules_test.yaml")
    books = set(os.listdir(os.path.join(ROOT, "docs", "runbooks"))) - {"README.md"}
    assert books == {name + ".md" for name in gen.ALERTS}, books ^ {name + ".md" for name in gen.ALERTS}
    index = read("docs", "runbooks", "README.md")
    for name in gen.ALERTS:
        assert re.search(rf"alertname: {name}\n        exp_alerts:\n", tests), f"{name} is never seen firing"
        text = read("docs", "runbooks", name + ".md")
        for part in (f"# {name}", "## What it means", "## Confirm", "## Do"):
            assert part in text, (name, part)
        assert f"({name}.md)" in index, name


def main():
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_")]
    print(f"1..{len(tests)}")
    bad = 0
    for i, (name, test) in enumerate(tests, 1):
        try:
            test()
            print(f"ok {i} - {name[5:]}")
        except AssertionError as e:
            bad += 1
            print(f"# {e}\nnot ok {i} - {name[5:]}")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
