#!/usr/bin/env python3
"""Keeps the chart's generated parts: the flags in values.schema.json, README.md, the kustomize base.

    gen.py --build DIR [--helm HELM]    writes them
    gen.py --build DIR --check          says what is out of date (exit status 1)

values.schema.json is written by hand but for two definitions, routerFlags and nodeFlags, which are read from `--help` of
the programs: name, type, range and text of every flag that the chart does not set itself. Needs PyYAML.
"""
import argparse
import difflib
import json
import os
import re
import subprocess
import sys

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
CHART = os.path.join(HERE, "tandem")
SCHEMA = os.path.join(CHART, "values.schema.json")
BASE = os.path.join(os.path.dirname(HERE), "kustomize", "base")

# Set by the chart from values of their own.
OWNED = {"model", "served-model-name", "chat-template", "name", "node", "cluster-key-file", "api-key-file", "role", "listen",
         "host", "port", "admin-host", "admin-port", "port-file", "kv-device", "kv-transports", "kv-port-range",
         "kv-trust-network", "drain-timeout", "log-level", "log-format", "grpc", "grpc-host", "grpc-port", "tls-cert",
         "tls-key", "tls-client-ca", "admin-tls-cert", "admin-tls-key", "admin-tls-client-ca", "otlp-endpoint",
         "trace-sample-ratio", "backend", "device", "tensor-parallel-size", "rank", "rank-listen",
         "rank-leader"}
BUILTIN = {"config", "fault", "print-config", "check-config", "list-fault-points", "version", "help"}


def program(build, name):
    for path in (os.path.join(build, name), os.path.join(build, "router", name)):
        if os.path.exists(path):
            return path
    raise SystemExit(f"{name} is not built in {build}")


def flags(build, name):
    """{flag: (kind, text, debug)} from --help and --print-config."""
    path = program(build, name)
    text = subprocess.run([path, "--help"], check=True, capture_output=True, text=True).stdout
    printed = subprocess.run([path, "--print-config"], check=True, capture_output=True, text=True).stdout
    debug = set(re.findall(r"^# .*\[for debugging\]\n([a-z0-9-]+):", printed, re.M))
    out = {}
    for line in text.splitlines():
        m = re.match(r"  --([a-z0-9-]+)(?: (\S+))?\s+(.*)$", line)
        if m:
            flag, kind, help_text = m.groups()
            if kind and not (kind in ("TEXT", "INT", "NUMBER", "A,B,...") or "|" in kind):
                kind, help_text = None, f"{kind} {help_text}"
            out[flag] = (kind, help_text, flag in debug)
    return out


def flag_schema(kind, text):
    if kind is None:
        return {"type": "boolean", "description": text}
    if kind == "A,B,...":
        return {"type": "array", "items": {"type": "string"}, "description": text}
    if kind == "TEXT":
        return {"type": "string", "description": text}
    if "|" in kind:
        return {"type": "string", "enum": kind.split("|"), "description": text}
    out = {"type": "integer" if kind == "INT" else "number", "description": text}
    m = re.search(r", ([-0-9.e+]+) to ([-0-9.e+]+) \(", text)
    if m:
        number = int if kind == "INT" else float
        try:
            out["minimum"], out["maximum"] = number(m.group(1)), number(m.group(2))
        except ValueError:
            out["minimum"], out["maximum"] = int(float(m.group(1))), int(float(m.group(2)))
    return out


def flag_definition(build, name, title, known=None):
    """With `known`, those flags keep their texts: a better word in the program's help is no error of the chart, a new flag is."""
    props = {}
    for flag, (kind, text, debug) in sorted(flags(build, name).items()):
        both_only = text.startswith("--role both:") or flag.startswith("router-admin")
        if flag not in OWNED | BUILTIN and not debug and not both_only:
            props[flag] = flag_schema(kind, text)
            if known is not None and flag in known:
                props[flag]["description"] = known[flag]["description"]
    return {"type": "object", "description": title, "additionalProperties": False, "properties": props}


def schema_text(build, check):
    with open(SCHEMA, encoding="utf-8") as f:
        schema = json.load(f)
    for key, name in (("routerFlags", "tandem-router"), ("nodeFlags", "tandem-decode")):
        schema["definitions"][key] = flag_definition(build, name, f"Flags of {name}, by their names; see its --help.",
                                                     schema["definitions"][key].get("properties") if check else None)
    return json.dumps(schema, indent=2, ensure_ascii=True) + "\n"


# ---- README ----

def resolve(schema, node):
    if "$ref" in node:
        target = schema["definitions"][node["$ref"].rsplit("/", 1)[1]]
        return {**target, **{k: v for k, v in node.items() if k != "$ref"}}
    return node


def kind_of(node):
    if "enum" in node:
        return ", ".join(f"`{v}`" for v in node["enum"])
    kind = node.get("type", "any")
    kind = kind if isinstance(kind, str) else " or ".join(kind)
    lo, hi = node.get("minimum"), node.get("maximum")
    if lo is not None and hi is not None:
        kind += f" {lo} to {hi}"
    elif lo is not None:
        kind += f" from {lo}"
    return kind


def default_of(value):
    text = json.dumps(value, sort_keys=True)
    return f"`{text}`" if len(text) <= 60 else "see values.yaml"


def rows(schema, node, value, path):
    """(path, type, default, description), leaves only."""
    node = resolve(schema, node)
    props = node.get("properties")
    if not props or path.endswith("config"):
        yield path, kind_of(node), default_of(value), node.get("description", "").replace("|", "\\|")
        return
    for key, child in props.items():
        if path == "" and key in ("decode", "standalone", "global"):
            continue
        inner = value.get(key) if isinstance(value, dict) else None
        yield from rows(schema, child, inner, f"{path}.{key}" if path else key)


def flag_rows(definition):
    for flag, node in sorted(definition["properties"].items()):
        yield f"| `{flag}` | {kind_of(node)} | {node['description'].replace('|', chr(92) + '|')} |"


def readme(schema):
    with open(os.path.join(CHART, "values.yaml"), encoding="utf-8") as f:
        values = yaml.safe_load(f)
    with open(os.path.join(HERE, "README.head.md"), encoding="utf-8") as f:
        out = [f.read().rstrip(), "", "## Values", "", "`decode` and `standalone` have the keys of `prefill`.",
               "Keys of `prefill.pools.NAME` and",
               "`decode.pools.NAME` are those of `prefill`, without `pools`.", "",
               "| key | type | default | meaning |", "|---|---|---|---|"]
    out += [f"| `{p}` | {k} | {d} | {t} |" for p, k, d, t in rows(schema, schema, values, "")]
    for key, title in (("routerFlags", "router.config"), ("nodeFlags", "prefill.config and decode.config")):
        out += ["", f"### {title}", "", "| flag | type | meaning |", "|---|---|---|"] + list(flag_rows(schema["definitions"][key]))
    return "\n".join(out) + "\n"


# ---- kustomize base ----

def base(helm):
    """The default rendering without what only Helm needs."""
    values = os.path.join(CHART, "ci", "base-values.yaml")
    text = subprocess.run([helm, "template", "tandem", CHART, "--namespace", "tandem", "-f", values, "--skip-tests"],
                          check=True, capture_output=True, text=True).stdout
    docs = [d for d in yaml.safe_load_all(text) if d]
    for doc in docs:
        strip(doc)
    docs.sort(key=lambda d: (d["kind"], d["metadata"]["name"]))
    head = "# Made by deploy/helm/gen.py from the chart; edit the chart.\n"
    return head + "---\n".join(yaml.safe_dump(d, sort_keys=True, default_flow_style=False) for d in docs)


def strip(doc):
    for meta in (doc["metadata"], doc.get("spec", {}).get("template", {}).get("metadata", {})):
        for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
            meta.get("labels", {}).pop(label, None)
        meta.pop("namespace", None)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--build", required=True)
    p.add_argument("--helm", help="helm program; without it the kustomize base is left alone")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    wanted = {SCHEMA: schema_text(a.build, a.check)}
    wanted[os.path.join(CHART, "README.md")] = readme(json.loads(wanted[SCHEMA]))
    if a.helm:
        wanted[os.path.join(BASE, "tandem.yaml")] = base(a.helm)
    stale = False
    for path, text in wanted.items():
        have = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
        if have != text:
            stale = True
            if a.check:
                sys.stdout.writelines(difflib.unified_diff(have.splitlines(True), text.splitlines(True), path, "generated", n=0))
            else:
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
                print("wrote", path)
    if stale and a.check:
        print("run: deploy/helm/gen.py --build BUILD --helm HELM")
        sys.exit(1)


if __name__ == "__main__":
    main()
