#!/usr/bin/env python3
"""The independent oracle for common/text/template*: Jinja itself, set up as transformers sets it up.

    template_oracle.py --tool PATH [NAME...]     compares every template (or those whose name contains NAME)

Templates: SmolLM2's from the model file, and those of llama-cpp-python's source archive (text_oracle.py fetch). Each is
rendered with every context of CONTEXTS; right is the same text, or an error where Jinja has one. REQUIRED must agree in
every context; of all others together at least FLOOR renderings must; each that differs is printed. Exit status 77
(skipped) without the packages of requirements.txt, or without the archive and the model.
"""
import argparse
import datetime
import glob
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import text_oracle  # noqa: E402

REQUIRED = ["SmolLM2", "Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.1-8B-Instruct",
            "mistralai-Mistral-Nemo-Instruct-2407", "google-gemma-2-2b-it"]
FLOOR = 450  # renderings of the other templates
NOW = datetime.datetime(2023, 11, 14, 22, 13, 20)  # template_tool.c
SKIP = 77
MODEL = os.environ.get("TANDEM_TEST_MODEL") or os.path.join(text_oracle.CACHE, "models",
                                                            "SmolLM2-135M-Instruct.Q4_1.gguf")

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather \"now\" <b>&amp;",
    "parameters": {"type": "object", "required": ["city"],
                   "properties": {"city": {"type": "string", "description": "The city"},
                                  "unit": {"type": "string", "enum": ["C", "F"]},
                                  "days": {"type": "integer"}}}}}]
CALL = {"id": "call00001", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Z\u00fcrich", "days": 2}}}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


CONTEXTS = [
    {"messages": [said("user", "Hello <|im_end|> world\n")], "add_generation_prompt": True},
    {"messages": [said("system", " Be brief. "), said("user", "Hi \u00e9 \u65e5\u672c"), said("assistant", "Yes."),
                  said("user", "And?")], "add_generation_prompt": True},
    {"messages": [said("user", "a"), said("assistant", "b")], "add_generation_prompt": False},
    {"messages": [said("system", "S"), said("user", "weather?"), said("assistant", "", tool_calls=[CALL]),
                  said("tool", "{\"t\": 20}", tool_call_id="call00001", name="get_weather"), said("assistant", "20"),
                  said("user", "thx")], "add_generation_prompt": True, "tools": TOOLS},
    {"messages": [said("assistant", "b"), said("assistant", "c")], "add_generation_prompt": True},
    {"messages": [said("system", ""), said("user", "  spaced\t\n\n"), said("assistant", "<think>\nhm\n</think>\n\nok"),
                  said("user", "'\"\\ \u2028 \U0001f600 {{ x }} {% y %}")], "add_generation_prompt": True,
     "enable_thinking": False},
    {"messages": [said("user", "weather?")], "add_generation_prompt": True, "tools": TOOLS, "enable_thinking": True},
]


def environment():
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """{% generation %} marks the assistant's part for training: its body as it is."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols", Generation])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def whole(context):
    return {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **context}


def expected(env, source):
    """A text for each context, or None where Jinja fails."""
    out = []
    for context in CONTEXTS:
        try:
            out.append(env.from_string(source).render(**whole(context)))
        except Exception:  # noqa: BLE001  whatever Jinja or Python raises is an error to the client
            out.append(None)
    return out


def ours(tool, path, contexts):
    done = subprocess.run([tool, path, contexts], capture_output=True, text=True, check=False)
    if done.returncode == 2:
        return [{"error": "does not compile: " + done.stdout.strip()}] * len(CONTEXTS)
    if done.returncode != 0:
        sys.exit(f"{tool} {path}: exit status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def compare(env, tool, name, path, contexts):
    """The number of equal renderings; prints the others."""
    source = subprocess.run([tool, path, "--print"], capture_output=True, check=True).stdout.decode()
    equal = 0
    for i, (want, got) in enumerate(zip(expected(env, source), ours(tool, path, contexts))):
        if got.get("text") == want:
            equal += 1
            continue
        at = next((k for k, (a, b) in enumerate(zip(want or "", got.get("text", ""))) if a != b), 0)
        print(f"{name}, context {i}: want {want[at:at + 60]!r}" if want is not None
              else f"{name}, context {i}: want an error", f"got {got.get('error') or got['text'][at:at + 60]!r}")
    return equal


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    try:
        env = environment()
    except ImportError:
        python = os.environ.get("TANDEM_TEST_PYTHON")
        if python and os.environ.get("TEMPLATE_ORACLE_AGAIN") is None:
            os.environ["TEMPLATE_ORACLE_AGAIN"] = "1"
            os.execv(python, [python] + sys.argv)
        print("needs the packages of tests/requirements.txt (TANDEM_TEST_PYTHON)")
        sys.exit(SKIP)
    try:
        folder = text_oracle.fetch()
    except subprocess.CalledProcessError as e:
        print(f"skipped: {e}")
        sys.exit(SKIP)
    paths = {os.path.basename(p)[:-6]: p for p in sorted(glob.glob(os.path.join(folder, "templates", "*.jinja")))}
    if not os.path.exists(MODEL):
        print(f"skipped: no {MODEL}")
        sys.exit(SKIP)
    paths["SmolLM2"] = MODEL
    failed, others, total = [], 0, 0
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump([whole(c) for c in CONTEXTS], f)
        f.flush()
        for name, path in paths.items():
            if args.names and not any(n in name for n in args.names):
                continue
            equal = compare(env, args.tool, name, path, f.name)
            if name in REQUIRED:
                failed += [name] if equal != len(CONTEXTS) else []
            else:
                others += equal
                total += len(CONTEXTS)
    print(f"required: {len(REQUIRED)} templates, failed: {failed or 'none'}; others: {others} of {total} equal, "
          f"floor {FLOOR}")
    missing = [n for n in REQUIRED if n not in paths]
    sys.exit(1 if failed or missing or (not args.names and others < FLOOR) else 0)


if __name__ == "__main__":
    main()
