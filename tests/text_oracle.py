#!/usr/bin/env python3
"""The independent oracle for common/text: Hugging Face `tokenizers`, rebuilt from the metadata of GGUF files.

    text_oracle.py fetch                          the vocabularies and templates of llama-cpp-python's source archive
    text_oracle.py check --tool PATH [--full]     compares ids and text of every vocabulary on the corpus
    text_oracle.py export --tool PATH --ctl PATH  the same with the files that `tandemctl export-tokenizer` writes
    text_oracle.py corpus OUT                     writes the corpus (about 3 MB) to a file

`check` fails if one id differs. It covers SmolLM2 ($TANDEM_TEST_MODEL) and the vocabularies in VOCABS, whose expected
ids (`.inp`, `.out`) must come out too. The corpus: source code and prose that every Debian has, translations from
debconf if there are any, seeded text in 40 scripts, emoji and spaces. Real vocabularies rarely merge across rare
characters, so a wrong class would not show in their ids: every code point is tried with a vocabulary made for it, in
which any two bytes that meet at a border of characters merge unless the pre-tokeniser cuts there.
The archive goes to the cache, checked by hash, and is never committed. Exit status 77 (skipped) without the packages
of requirements.txt, or without the archive when nothing can be downloaded.
"""
import argparse
import glob
import hashlib
import os
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tandem")
SDIST = "llama-cpp-python==0.3.36"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SDIST_DIR = os.path.join(CACHE, "llama-cpp-python-0.3.36")
VOCABS = ["gpt-2", "llama-bpe", "qwen2"]
VOCABS_FULL = ["starcoder", "refact"]
# Their expected ids are checked only. (That qwen35 does not normalise is known from those alone.)
EXPECTED_ONLY = ["starcoder", "refact", "qwen35"]
PRES = ["gpt-2", "smollm", "llama-bpe", "qwen2"]
PRES_POINTS = ["smollm", "qwen2"]  # all share one table of classes; between them they ask for each class
SKIP = 77

LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


# ---- the archive ----

def fetch():
    """The folder with models/ and templates/ of the archive; downloads it if need be."""
    if os.path.exists(os.path.join(SDIST_DIR, "complete")):
        return SDIST_DIR
    os.makedirs(CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as tmp:
        req = os.path.join(tmp, "req.txt")
        with open(req, "w") as f:
            f.write(f"{SDIST} --hash=sha256:{SDIST_SHA256}\n")
        # pip asks a source archive for its metadata; with the pinned build tool that runs nothing unpinned. Only the
        # Python of the tests has that tool: the one that runs this may merely have the packages to compare with.
        python = os.environ.get("TANDEM_TEST_PYTHON") or sys.executable
        subprocess.run([python, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                        "--no-binary", ":all:", "--no-build-isolation", "--require-hashes", "-r", req, "-d", tmp],
                       check=True, stdout=sys.stderr)
        archive, = glob.glob(os.path.join(tmp, "llama_cpp_python-*.tar.gz"))
        with open(archive, "rb") as f:
            if hashlib.sha256(f.read()).hexdigest() != SDIST_SHA256:
                sys.exit("the archive's SHA-256 is not the expected one")
        part = os.path.join(tmp, "part")
        with tarfile.open(archive) as tar:
            for m in tar:
                name = m.name.partition("/vendor/llama.cpp/models/")[2]
                keep = name.startswith("ggml-vocab-") or (name.startswith("templates/") and name.endswith(".jinja"))
                if not (m.isfile() and keep and ".." not in name):
                    continue
                path = os.path.join(part, name if "/" in name else "models/" + name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as out:
                    out.write(tar.extractfile(m).read())
        open(os.path.join(part, "complete"), "w").close()
        try:
            os.rename(part, SDIST_DIR)
        except OSError:
            if not os.path.exists(os.path.join(SDIST_DIR, "complete")):
                raise
    return SDIST_DIR


# ---- GGUF metadata ----

class Gguf:
    """The metadata of a GGUF file, nothing else; trusts the file."""
    FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read(64 << 20)
        self.at = 24
        magic, _, _, n = struct.unpack_from("<IIQQ", self.data)
        if magic != 0x46554747:
            sys.exit(f"{path} is not GGUF")
        self.kv = {}
        for _ in range(n):
            key = self.string()
            self.kv[key] = self.value(self.number("I"))

    def number(self, code):
        v, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return v

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind != 9:
            return self.number(self.FIXED[kind])
        of = self.number("I")
        n = self.number("Q")
        return [self.value(of) for _ in range(n)]

    def tok(self, key, default=None):
        return self.kv.get("tokenizer.ggml." + key, default)


# ---- the oracle ----

def build(g, control):
    """`tokenizers.Tokenizer` over the vocabulary; with `control`, control tokens are recognised in the text."""
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as pre
    pieces, types = g.tok("tokens"), g.tok("token_type")
    merges = [tuple(m.split(" ")) for m in g.tok("merges")]
    family = g.tok("pre", "default")
    hidden = () if control else (UNKNOWN, CONTROL)
    vocab = {p: i for i, p in enumerate(pieces) if types[i] not in hidden}
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=family == "llama-bpe"))
    plain = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    whole = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    if family in ("smollm", "starcoder", "refact"):
        t.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), plain])
    elif family == "llama-bpe":
        t.pre_tokenizer = pre.Sequence([pre.Split(Regex(LLAMA3_SPLIT), "isolated"), whole])
    elif family == "qwen2":
        t.pre_tokenizer = pre.Sequence([pre.Split(Regex(QWEN2_SPLIT), "isolated"), whole])
        t.normalizer = normalizers.NFC()
    elif family in ("gpt-2", "default"):
        t.pre_tokenizer = plain
    else:
        sys.exit(f"no oracle for the pre-tokeniser {family}")
    t.decoder = decoders.ByteLevel()
    t.add_tokens([AddedToken(p, normalized=False) for i, p in enumerate(pieces) if types[i] == USER_DEFINED])
    if control:
        t.add_special_tokens([AddedToken(p, normalized=False, special=True) for i, p in enumerate(pieces)
                              if types[i] in (UNKNOWN, CONTROL)])
    assert all(t.token_to_id(p) == i for p, i in vocab.items()), "the oracle renumbered tokens"
    return t


def ours(tool, model, cases):
    """Ids and detokenised text of each case, a list of (text as bytes, allow_special)."""
    request = b"".join(struct.pack("<I", len(c)) + b"".join(struct.pack("<BI", a, len(s)) + s for s, a in c)
                       for c in cases)
    reply = subprocess.run([tool, model], input=request, stdout=subprocess.PIPE, check=True).stdout
    out, at = [], 0
    while at < len(reply):
        n, = struct.unpack_from("<I", reply, at)
        ids = list(struct.unpack_from(f"<{n}i", reply, at + 4))
        at += 4 + 4 * n
        n, = struct.unpack_from("<I", reply, at)
        out.append((ids, reply[at + 4:at + 4 + n]))
        at += 4 + n
    return out


# ---- the corpus ----

SCRIPTS = [(0x61, 0x7a), (0xc0, 0x17f), (0x370, 0x3ff), (0x400, 0x4ff), (0x531, 0x556), (0x5d0, 0x5ea), (0x620, 0x64a),
           (0x904, 0x939), (0x985, 0x9b9), (0xa05, 0xa39), (0xa85, 0xab9), (0xb05, 0xb39), (0xb85, 0xbb9),
           (0xc05, 0xc39), (0xc85, 0xcb9), (0xd05, 0xd39), (0xd85, 0xdc6), (0xe01, 0xe3a), (0xe81, 0xeb0),
           (0xf40, 0xf6c), (0x1000, 0x102a), (0x10a0, 0x10ff), (0x1200, 0x135a), (0x13a0, 0x13f4), (0x1401, 0x166c),
           (0x1780, 0x17b3), (0x1820, 0x1877), (0x3041, 0x3096), (0x30a1, 0x30fa), (0x3105, 0x312f), (0x4e00, 0x9fff),
           (0xac00, 0xd7a3), (0x1e00, 0x1eff), (0x1f00, 0x1fff), (0x2c00, 0x2c5f), (0xa4d0, 0xa4ff), (0x10400, 0x1044f),
           (0x1d400, 0x1d7ff), (0x20000, 0x2a6df), (0x12000, 0x12399)]
MARKS = [chr(c) for c in list(range(0x300, 0x370)) + [0x93c, 0x94d, 0x9be, 0xe34, 0x1dc0, 0x20d0, 0x3099, 0xfe0f]]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\xa0", "\u3000", "\u2003", "\u2028", "\x85", "\x0b", "\u200b",
          " \n", "\n ", " \t ", "\n\n\n", "    ", "        ", "\r", "\u202f"]
DIGITS = ["0123456789", "\u0660\u0661\u0662\u0663", "\u0966\u0967\u0968", "\uff10\uff11\uff12", "\xb2\xb3\xb9\xbc",
          "\u2160\u2161\u216b", "\u2460\u2461", "\U0001d7ce\U0001d7cf"]
EMOJI = ["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f",
         "\U0001f1e9\U0001f1ea", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\u2603",
         "1\ufe0f\u20e3", "\U0001f999", "\U0001fae0"]
PUNCT = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "\u2026", "\u2014", "\u201c", "\u201d", "\xbf", "\u3002",
                                                      "\uff0c", "->", "==", "!=", "//", "/*", "*/", "```", "<|", "|>"]
SHORT = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'lL", "'D", "'\u017f", "'x", "'", "''"]


def word(r):
    lo, hi = r.choice(SCRIPTS)
    s = "".join(chr(r.randint(lo, hi)) for _ in range(r.randint(1, 8)))
    if r.random() < 0.1:
        s = s.upper()
    if r.random() < 0.15:
        i = r.randrange(len(s) + 1)
        s = s[:i] + "".join(r.choice(MARKS) for _ in range(r.randint(1, 3))) + s[i:]
    return s


def seeded(r, chars):
    parts, n = [], 0
    while n < chars:
        x = r.random()
        if x < 0.40:
            p = word(r)
        elif x < 0.65:
            p = " " if r.random() < 0.6 else r.choice(SPACES) * r.choice([1, 1, 1, 2, 5])
        elif x < 0.75:
            p = "".join(r.choice(r.choice(DIGITS)) for _ in range(r.randint(1, 7)))
        elif x < 0.85:
            p = "".join(r.choice(PUNCT) for _ in range(r.choice([1, 1, 1, 2, 4])))
        elif x < 0.92:
            p = r.choice(SHORT)
        elif x < 0.98:
            p = r.choice(EMOJI)
        else:
            p = r.choice(["a" * 300, " " * 200, "\n" * 90, "-" * 150, "ab" * 100, "0" * 120, "\u4e2d" * 80])
        parts.append(p)
        n += len(p)
    return "".join(parts)


def every_code_point():
    """Each code point of the planes in use, in the middle of a word, on its own, and beside digits and marks."""
    for first in range(0, 0x32800, 0x800):
        if not 0xd800 <= first < 0xe000:
            yield "".join(f"x{chr(c)}y '{chr(c)}1 {chr(c)}\n" for c in range(first, first + 0x800))
    for first in range(0xe0000, 0xe0200, 0x100):
        yield "".join(f"x{chr(c)}y {chr(c)} " for c in range(first, first + 0x100))
    rest = (0x32801, 0x40000, 0x50123, 0xf0000, 0xffffd, 0x100000, 0x10fffd, 0x10ffff)
    yield "".join(f"x{chr(c)}y {chr(c)} " for c in rest)


def runs_of_marks(r):
    """Characters with marks in any order: what NFC reorders and composes."""
    bases = [chr(c) for c in (0x61, 0x45, 0x3b1, 0x1f00, 0x915, 0x9c7, 0xdd9, 0x1100, 0x1161, 0x11a8, 0xac00, 0x304b,
                              0x5d0, 0x627, 0x212b, 0x1d157, 0x4e2d)]
    return ["".join(r.choice(bases if r.random() < 0.4 else MARKS) for _ in range(200)) for _ in range(500)]


def byte_alphabet():
    """GPT-2's: the character that stands for each byte."""
    own = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    other = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(0x100 + i) for i, b in enumerate(other)}}


def write_border_vocab(path, pre):
    """A GGUF file without tensors whose merges join the last byte of any character to the first of any other."""
    chars = byte_alphabet()
    starts = [*range(0x80), *range(0xc2, 0xf5)]
    pairs = [(a, b) for a in range(0xc0) for b in starts]
    pieces = list(chars.values()) + [chars[a] + chars[b] for a, b in pairs]
    merges = [f"{chars[a]} {chars[b]}" for a, b in pairs]

    def string(text):
        raw = text.encode()
        return struct.pack("<Q", len(raw)) + raw

    def array(key, kind, items):
        return string(key) + struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)

    kv = [string("tokenizer.ggml.model") + struct.pack("<I", 8) + string("gpt2"),
          string("tokenizer.ggml.pre") + struct.pack("<I", 8) + string(pre),
          string("tokenizer.ggml.add_bos_token") + struct.pack("<I?", 7, False),
          array("tokenizer.ggml.tokens", 8, [string(p) for p in pieces]),
          array("tokenizer.ggml.token_type", 5, [struct.pack("<i", NORMAL)] * len(pieces)),
          array("tokenizer.ggml.merges", 8, [string(m) for m in merges])]
    with open(path, "wb") as f:
        f.write(struct.pack("<IIQQ", 0x46554747, 3, 0, len(kv)) + b"".join(kv))


def files():
    """Text files of any Debian, at most about 2 MB, in a fixed order."""
    stdlib = os.path.dirname(os.__file__)
    for pattern, budget in (("/usr/share/common-licenses/*", 400_000), (stdlib + "/*.py", 700_000),
                            ("/usr/share/perl/5*/**/*.p[lm]", 400_000), ("/var/lib/dpkg/info/*.templates", 500_000)):
        for path in sorted(glob.glob(pattern, recursive=True)):
            if budget <= 0 or os.path.islink(path) or not os.path.isfile(path):
                continue
            with open(path, encoding="utf-8", errors="replace", newline="") as f:
                text = f.read(budget)
            budget -= len(text)
            yield text


def corpus():
    r = random.Random(20260101)
    docs = list(files())
    docs += [seeded(r, 20_000) for _ in range(40)]
    docs += [seeded(r, r.randint(1, 40)) for _ in range(2000)]
    return [d for d in docs if d]


# ---- the checks ----

class Failures:
    def __init__(self):
        self.n = 0

    def add(self, name, what, text, want, got):
        self.n += 1
        if self.n <= 20:
            i = next((k for k in range(min(len(want), len(got))) if want[k] != got[k]), min(len(want), len(got)))
            print(f"{name}: {what} differs at {i}: want {want[max(0, i - 3):i + 5]} got {got[max(0, i - 3):i + 5]}\n"
                  f"    text {text[:80]!r}", flush=True)


def check_expected(tool, name, path, failures):
    with open(path + ".inp", "rb") as f:
        texts = f.read().split(b"\n__ggml_vocab_test__\n")
    with open(path + ".out") as f:
        want = [[int(x) for x in line.split()] for line in f.read().split("\n")][:len(texts)]
    for text, ids, (got, _) in zip(texts, want, ours(tool, path, [[(t, 0)] for t in texts]), strict=True):
        if ids != got:
            failures.add(name, "the archive's expected ids", text, ids, got)
    print(f"{name}: {len(texts)} texts of the archive with expected ids", flush=True)


def cut(r, raw):
    """`raw` in up to 6 segments, cut between characters."""
    text = raw.decode()
    at = sorted(r.randrange(len(text) + 1) for _ in range(r.randint(0, 5)))
    return [(text[a:b].encode(), 0) for a, b in zip([0] + at, at + [len(text)])]


def check_vocab(tool, name, path, docs, failures):
    start = time.monotonic()
    g = Gguf(path)
    r = random.Random(name)
    user, template = build(g, False), build(g, True)
    raw = [d.encode() for d in docs]
    n_ids = 0
    for text, enc, (got, back) in zip(docs, user.encode_batch(docs), ours(tool, path, [cut(r, d) for d in raw]),
                                      strict=True):
        n_ids += len(got)
        if enc.ids != got:
            failures.add(name, "ids", text, enc.ids, got)
        elif user.decode(enc.ids, skip_special_tokens=False).encode() != back:
            failures.add(name, "text", text, user.decode(enc.ids, skip_special_tokens=False).encode(), back)
    control = [p for p, t in zip(g.tok("tokens"), g.tok("token_type")) if t in (CONTROL, USER_DEFINED)]
    mixed = []
    for _ in range(1000 if control else 0):
        parts = [r.choice(control) if r.random() < 0.4 else seeded(r, r.randint(1, 30)) for _ in range(r.randint(1, 8))]
        mixed.append("".join(parts))
    for text, enc, (got, back) in zip(mixed, template.encode_batch(mixed, add_special_tokens=False),
                                      ours(tool, path, [[(m.encode(), 1)] for m in mixed]), strict=True):
        if enc.ids != got:
            failures.add(name, "ids with control tokens", text, enc.ids, got)
        elif template.decode(enc.ids, skip_special_tokens=False).encode() != back:
            failures.add(name, "text with control tokens", text,
                         template.decode(enc.ids, skip_special_tokens=False).encode(), back)
    print(f"{name}: {sum(map(len, raw))} bytes, {n_ids} ids, {len(mixed)} texts with control tokens "
          f"({time.monotonic() - start:.1f} s)", flush=True)


def check(tool, full):
    docs = corpus()
    size = sum(len(d.encode()) for d in docs)
    if size < 2_000_000:
        sys.exit(f"the corpus has only {size} bytes")
    failures = Failures()
    model = os.environ.get("TANDEM_TEST_MODEL") or os.path.join(CACHE, "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    try:
        models = os.path.join(fetch(), "models/ggml-vocab-")
    except (subprocess.CalledProcessError, OSError) as e:
        print(f"the archive cannot be had: {e}")
        return SKIP
    for name in VOCABS + EXPECTED_ONLY:
        check_expected(tool, name, models + name + ".gguf", failures)
    compared = {"smollm2": model}
    compared.update((name, models + name + ".gguf") for name in VOCABS + (VOCABS_FULL if full else []))
    for name, path in compared.items():
        check_vocab(tool, name, path, docs, failures)
    r = random.Random(1)
    borders = runs_of_marks(r) + [seeded(r, r.randint(1, 40)) for _ in range(3000)]
    points = list(every_code_point())
    with tempfile.TemporaryDirectory() as tmp:
        for pre in PRES:
            path = os.path.join(tmp, pre + ".gguf")
            write_border_vocab(path, pre)
            docs = borders + points if full or pre in PRES_POINTS else borders
            check_vocab(tool, pre + " borders", path, docs, failures)
    print(f"{failures.n} differences")
    return 1 if failures.n else 0


def check_export(tool, ctl, name, path, docs, failures):
    """Hugging Face's tokenizer as a user loads it: from the exported file."""
    import tokenizers
    with tempfile.TemporaryDirectory() as tmp:
        done = subprocess.run([ctl, "export-tokenizer", tmp, "--model", path], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{name}: {done.stderr}")
        theirs = tokenizers.Tokenizer.from_file(os.path.join(tmp, "tokenizer.json"))
    g = Gguf(path)
    r = random.Random(name)
    control = [p for p, t in zip(g.tok("tokens"), g.tok("token_type")) if t in (CONTROL, USER_DEFINED)]
    texts = docs + [seeded(r, r.randint(1, 60)) for _ in range(2000)]
    for _ in range(1000 if control else 0):
        parts = [r.choice(control) if r.random() < 0.4 else seeded(r, r.randint(1, 30)) for _ in range(r.randint(1, 8))]
        texts.append("".join(parts))
    n = 0
    for text, enc, (got, back) in zip(texts, theirs.encode_batch(texts, add_special_tokens=False),
                                      ours(tool, path, [[(t.encode(), 1)] for t in texts]), strict=True):
        n += len(got)
        if enc.ids != got:
            failures.add(name, "ids of the exported tokenizer", text, enc.ids, got)
        elif theirs.decode(enc.ids, skip_special_tokens=False).encode() != back:
            failures.add(name, "text of the exported tokenizer", text,
                         theirs.decode(enc.ids, skip_special_tokens=False), back)
    print(f"{name}: {n} ids of {len(texts)} texts by the exported tokenizer", flush=True)


def export(tool, ctl):
    docs = corpus()[::7]
    failures = Failures()
    model = os.environ.get("TANDEM_TEST_MODEL") or os.path.join(CACHE, "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    try:
        models = os.path.join(fetch(), "models/ggml-vocab-")
    except (subprocess.CalledProcessError, OSError) as e:
        print(f"the archive cannot be had: {e}")
        return SKIP
    for name, path in [("smollm2", model)] + [(v, models + v + ".gguf") for v in VOCABS]:
        check_export(tool, ctl, name, path, docs, failures)
    print(f"{failures.n} differences")
    return 1 if failures.n else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="verb", required=True)
    sub.add_parser("fetch")
    c = sub.add_parser("check")
    c.add_argument("--tool", required=True, help="text_encode_tool of the build")
    c.add_argument("--full", action="store_true", help="more vocabularies")
    e = sub.add_parser("export")
    e.add_argument("--tool", required=True, help="text_encode_tool of the build")
    e.add_argument("--ctl", required=True, help="tandemctl")
    sub.add_parser("corpus").add_argument("out")
    args = p.parse_args()
    if args.verb == "fetch":
        print(fetch())
        return 0
    if args.verb == "corpus":
        with open(args.out, "wb") as f:
            f.write("\n".join(corpus()).encode())
        return 0
    try:
        import tokenizers
    except ImportError:
        python = os.environ.get("TANDEM_TEST_PYTHON")
        if python and os.environ.get("TEXT_ORACLE_AGAIN") is None:
            os.environ["TEXT_ORACLE_AGAIN"] = "1"
            os.execv(python, [python] + sys.argv)
        print("needs the packages of tests/requirements.txt (TANDEM_TEST_PYTHON)")
        return SKIP
    print(f"tokenizers {tokenizers.__version__}")
    return export(args.tool, args.ctl) if args.verb == "export" else check(args.tool, args.full)


if __name__ == "__main__":
    sys.exit(main())
