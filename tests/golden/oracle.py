"""The independent oracle for the engine: a llama forward pass in numpy, weights dequantised by the `gguf` package.

    oracle.py prompts MODEL OUT [--int8] [--head16] [--ids FILE]   logits of a list of prompts
    oracle.py windows MODEL TEXT OUT [--head16]   four windows of 512 tokens: best token, margin, loss; float and int8
    oracle.py blocks OUT                          dequantised values of random blocks of every supported type

Arithmetic is float64 over float32 weights unless --int8 asks for the rounding of kernels/NUMERICS.md: activations in
blocks of 32 as int8, exact integer products, float32 accumulation in block order, keys and values in bfloat16.
--head16: the activations of the output matrix alone get 16 bits (largest 32512 = 127 * 256 instead of 127).
Nothing here is shared with the C code. File formats: tests/golden/README.md.
"""
import argparse
import hashlib
import json
import struct
import sys

import gguf
import numpy as np

N_TOP = 16
N_SAMPLED = 256
WINDOW = 512
N_WINDOWS = 4

# Rendered by hand, so that this file depends on no template engine; control tokens are spelled in the text.
CHAT = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n" \
       "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    CHAT.format("What is the capital of France?"),
    CHAT.format("Write a haiku about the sea."),
    "Once upon a time",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "The three laws of thermodynamics are: 1.",
    "La r\u00e9volution fran\u00e7aise commence en",
    "\u6771\u4eac\u306f\u65e5\u672c\u306e",
    "{\"name\": \"tandem\", \"version\": \"0.1.0\", \"tags\": [\"llm\", \"serving\"",
    "a",
    "2 + 2 = 4, 3 + 3 = 6, 4 + 4 =",
]


HEAD_TOP = 32512  # 127 * 256: two int8 digits


def rint_int8(x, top=127, block=32):
    """Blocks of 32 of the last axis -> (q as float32, d as float32), the rule for activations."""
    x = x.astype(np.float32).reshape(*x.shape[:-1], -1, block)
    amax = np.abs(x).max(-1, keepdims=True)
    ok = (amax >= np.float32(1e-30)) & (amax <= np.float32(3.4e38))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        d = np.where(ok, amax / np.float32(top), np.float32(0)).astype(np.float32)
        inv = np.where(ok, np.float32(top) / amax, np.float32(0)).astype(np.float32)
    return np.rint(x * inv).astype(np.float32), d[..., 0]


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


class Weight:
    """A matrix in float32, and on demand the integers, steps and minima of its blocks."""

    def __init__(self, tensor):
        self.type = tensor.tensor_type
        self.raw = np.array(tensor.data)
        self.f32 = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    def int8_blocks(self):
        """(q [rows, blocks, size], dw [rows, blocks], mw or None) with value = dw q + mw."""
        rows = self.f32.shape[0]
        name = self.type.name
        if name in ("F32", "F16", "BF16"):
            q, dw = rint_int8(self.f32)
            return q, dw, None
        size = 16 if name == "Q6_K" else 32
        x = self.f32.reshape(rows, -1, size)
        dw, mw = getattr(self, "_steps_" + name)(rows)
        base = np.zeros_like(dw) if mw is None else mw
        with np.errstate(divide="ignore", invalid="ignore"):
            q = np.rint((x.astype(np.float64) - base[..., None]) / dw[..., None])
        return np.where(dw[..., None] == 0, 0, q).astype(np.float32), dw, mw

    def _halves(self, rows, block_bytes, *offsets):
        raw = self.raw.view(np.uint8).reshape(rows, -1, block_bytes)
        halves = [np.ascontiguousarray(raw[..., o:o + 2]).view(np.float16)[..., 0] for o in offsets]
        return [h.astype(np.float32) for h in halves], raw

    def _steps_Q4_0(self, rows):
        return self._halves(rows, 18, 0)[0][0], None

    def _steps_Q5_0(self, rows):
        return self._halves(rows, 22, 0)[0][0], None

    def _steps_Q8_0(self, rows):
        return self._halves(rows, 34, 0)[0][0], None

    def _steps_Q4_1(self, rows):
        return tuple(self._halves(rows, 20, 0, 2)[0])

    def _steps_Q5_1(self, rows):
        return tuple(self._halves(rows, 24, 0, 2)[0])

    def _k_steps(self, rows, block_bytes):
        (d, dmin), raw = self._halves(rows, block_bytes, 0, 2)
        s = raw[..., 4:16].astype(np.uint32)
        lo, hi, tail = s[..., 0:4], s[..., 4:8], s[..., 8:12]
        sc = np.concatenate([lo & 63, (tail & 15) | (lo >> 6) << 4], -1).astype(np.float32)
        mn = np.concatenate([hi & 63, (tail >> 4) | (hi >> 6) << 4], -1).astype(np.float32)
        return (d[..., None] * sc).reshape(rows, -1), (-(dmin[..., None] * mn)).reshape(rows, -1)

    def _steps_Q4_K(self, rows):
        return self._k_steps(rows, 144)

    def _steps_Q5_K(self, rows):
        return self._k_steps(rows, 176)

    def _steps_Q6_K(self, rows):
        (d,), raw = self._halves(rows, 210, 208)
        sc = np.ascontiguousarray(raw[..., 192:208]).view(np.int8).astype(np.float32)
        return (d[..., None] * sc).reshape(rows, -1), None


def product_int8(x, w, top=127):
    """x [n, k] times w, rounded as the engine does; fma is float64 rounded again: hardly ever different."""
    qx, dx = rint_int8(x, top)
    exact = np.float32 if top == 127 else np.float64  # sums below 2^24, or below 2^53
    qw, dw, mw = w.int8_blocks()
    parts = qw.shape[1] // qx.shape[1]  # 2 for Q6_K: two steps in each block of 32
    sums = qx.sum(-1).astype(np.float32) * dx
    acc = np.zeros((x.shape[0], qw.shape[0]), np.float32)
    for b in range(qx.shape[1]):
        for i in range(parts):
            j = b * parts + i
            size = qw.shape[2]
            integer = qx[:, b, i * size:(i + 1) * size].astype(exact) @ qw[:, j].T.astype(exact)
            integer = integer.astype(np.float32)
            scale = dx[:, b, None] * dw[None, :, j]
            acc = (integer.astype(np.float64) * scale + acc).astype(np.float32)
        if mw is not None:
            acc = (sums[:, b, None].astype(np.float64) * mw[None, :, b] + acc).astype(np.float32)
    return acc


class Llama:
    def __init__(self, path, int8, head16=False):
        r = gguf.GGUFReader(path)
        get = lambda key, default=None: r.fields[key].contents() if key in r.fields else default
        self.int8 = int8
        self.head_top = HEAD_TOP if head16 else 127
        self.t = {t.name: t for t in r.tensors}
        self.n_layers = get("llama.block_count")
        self.n_heads = get("llama.attention.head_count")
        self.n_kv = get("llama.attention.head_count_kv", self.n_heads)
        self.n_embd = get("llama.embedding_length")
        self.head_dim = get("llama.attention.key_length", self.n_embd // self.n_heads)
        self.eps = get("llama.attention.layer_norm_rms_epsilon")
        theta = get("llama.rope.freq_base", 10000.0)
        dim = get("llama.rope.dimension_count", self.head_dim)
        self.freq = (1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)).astype(np.float32)
        self.rope_dim = dim
        self.sha = hashlib.sha256(open(path, "rb").read()).digest()
        self.reader = r
        self.embd = self.weight("token_embd.weight")
        self.n_vocab = self.embd.f32.shape[0]
        self.head = self.weight("output.weight") if "output.weight" in self.t else self.embd

    def weight(self, name):
        return Weight(self.t[name])

    def vector(self, name):
        return np.array(self.t[name].data, np.float64)

    def mul(self, x, w):
        if self.int8:
            return product_int8(x, w, self.head_top if w is self.head else 127).astype(np.float64)
        return x @ w.f32.astype(np.float64).T

    def norm(self, x, w):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * w

    def rope(self, x, pos):
        """x [n, heads, head_dim]; neighbours turn together."""
        angle = pos[:, None] * self.freq.astype(np.float64)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out = x.copy()
        a, b = x[..., 0:self.rope_dim:2], x[..., 1:self.rope_dim:2]
        out[..., 0:self.rope_dim:2] = a * c - b * s
        out[..., 1:self.rope_dim:2] = a * s + b * c
        return out

    def attend(self, q, k, v):
        n, group = q.shape[0], self.n_heads // self.n_kv
        if self.int8:
            k, v = to_bf16(k).astype(np.float64), to_bf16(v).astype(np.float64)
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        s = np.einsum("qhd,khd->hqk", q, k, optimize=True) / np.sqrt(self.head_dim)
        s = np.where(np.tri(n, dtype=bool), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", p, v, optimize=True).reshape(n, -1)

    def hidden(self, sequences):
        """Final normalised rows of several sequences, each from position 0."""
        cuts = np.cumsum([len(s) for s in sequences])[:-1]
        pos = np.concatenate([np.arange(len(s), dtype=np.float64) for s in sequences])
        h = self.embd.f32[np.concatenate(sequences)].astype(np.float64)
        for l in range(self.n_layers):
            p = f"blk.{l}."
            x = self.norm(h, self.vector(p + "attn_norm.weight"))
            q = self.rope(self.mul(x, self.weight(p + "attn_q.weight")).reshape(len(x), -1, self.head_dim), pos)
            k = self.rope(self.mul(x, self.weight(p + "attn_k.weight")).reshape(len(x), -1, self.head_dim), pos)
            v = self.mul(x, self.weight(p + "attn_v.weight")).reshape(len(x), -1, self.head_dim)
            parts = [np.split(a, cuts) for a in (q, k, v)]
            o = np.concatenate([self.attend(*a) for a in zip(*parts)])
            h = h + self.mul(o, self.weight(p + "attn_output.weight"))
            x = self.norm(h, self.vector(p + "ffn_norm.weight"))
            g = self.mul(x, self.weight(p + "ffn_gate.weight"))
            u = self.mul(x, self.weight(p + "ffn_up.weight"))
            h = h + self.mul(g / (1 + np.exp(-g)) * u, self.weight(p + "ffn_down.weight"))
        return np.split(self.norm(h, self.vector("output_norm.weight")), cuts)

    def tokenizer(self):
        """Hugging Face `tokenizers` rebuilt from the file's metadata (pre-tokeniser smollm)."""
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers
        f = self.reader.fields
        pieces = f["tokenizer.ggml.tokens"].contents()
        types = f["tokenizer.ggml.token_type"].contents()
        merges = [tuple(m.split(" ")) for m in f["tokenizer.ggml.merges"].contents()]
        assert f["tokenizer.ggml.pre"].contents() == "smollm"
        t = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        t.decoder = decoders.ByteLevel()
        t.add_special_tokens([p for p, k in zip(pieces, types) if k == 3])
        return t


def write_prompts(args):
    m = Llama(args.model, args.int8, args.head16)
    if args.ids:
        sequences = json.load(open(args.ids))
    else:
        t = m.tokenizer()
        sequences = [t.encode(p).ids for p in PROMPTS]
    n_sampled = min(N_SAMPLED, m.n_vocab)
    sampled = np.unique(np.linspace(0, m.n_vocab - 1, n_sampled).astype(np.int64))
    out = open(args.out, "wb")
    out.write(b"TDLOGIT1" + m.sha + struct.pack("<4I", len(sequences), m.n_vocab, N_TOP, len(sampled)))
    out.write(sampled.astype("<i4").tobytes())
    for ids, x in zip(sequences, m.hidden(sequences)):
        logits = m.mul(x, m.head)
        top = np.argsort(-logits, -1, kind="stable")[:, :N_TOP]
        out.write(struct.pack("<I", len(ids)) + np.array(ids, "<i4").tobytes())
        for row, best in zip(logits, top):
            out.write(best.astype("<i4").tobytes() + row[best].astype("<f4").tobytes())
            out.write(row[sampled].astype("<f4").tobytes() + struct.pack("<f", np.sqrt((row * row).mean())))
        print(len(ids), top[-1][:4], logits[-1][top[-1][:4]], file=sys.stderr)


def window_stats(m, windows):
    rows = []
    for ids, x in zip(windows, m.hidden(windows)):
        logits = m.mul(x, m.head)
        best = logits.argmax(-1)
        second = np.partition(logits, -2, -1)
        top = second[:, -1]
        lse = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        nll = lse[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]
        rows.append((best, top - second[:, -2], nll))
    return rows


def write_windows(args):
    exact = Llama(args.model, False)
    ids = exact.tokenizer().encode(open(args.text, encoding="utf-8").read()).ids
    windows = [ids[i * WINDOW:(i + 1) * WINDOW] for i in range(N_WINDOWS)]
    stats = [window_stats(exact, windows), window_stats(Llama(args.model, True, args.head16), windows)]
    out = open(args.out, "wb")
    out.write(b"TDWINDW1" + exact.sha + struct.pack("<2I", N_WINDOWS, WINDOW))
    for i in range(N_WINDOWS):
        out.write(np.array(windows[i], "<i4").tobytes())
        for s in stats:
            best, margin, nll = s[i]
            out.write(best.astype("<i4").tobytes() + margin.astype("<f4").tobytes() + struct.pack("<d", nll.sum()))
    ppl = [np.exp(np.concatenate([w[2] for w in s]).mean()) for s in stats]
    same = np.mean([a[0] == b[0] for a, b in zip(*stats)])
    print(f"perplexity float {ppl[0]:.4f} int8 {ppl[1]:.4f} ({100 * (ppl[1] / ppl[0] - 1):+.3f} %), "
          f"same best token {100 * same:.2f} %", file=sys.stderr)


def write_blocks(args):
    rng = np.random.default_rng(1)
    out = open(args.out, "wb")
    names = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
              "Q6_K": [208]}
    out.write(b"TDBLOCK1" + struct.pack("<I", len(names)))
    for name in names:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        n = 512 // block
        raw = rng.integers(0, 256, (n, size), np.uint8)
        for at in halves.get(name, []):  # finite steps, some of them subnormal
            h = rng.normal(0, 1, n).astype(np.float16)
            h[0] = np.float16(3e-6)
            raw[:, at:at + 2] = h.view(np.uint8).reshape(n, 2)
        if name in ("F32", "F16", "BF16"):
            values = rng.normal(0, 1, 512).astype(np.float32)
            values[:4] = [0, -0.0, 6e-8, 65504]
            raw = {"F32": values, "F16": values.astype(np.float16),
                   "BF16": (values.view(np.uint32) >> 16).astype(np.uint16)}[name].view(np.uint8).reshape(n, size)
        values = gguf.quants.dequantize(np.ascontiguousarray(raw.reshape(1, -1)).view(
            {"F32": np.float32, "F16": np.float16}.get(name, np.uint8)), kind).astype("<f4")
        out.write(struct.pack("<3I", int(kind), 512, raw.size) + raw.tobytes() + values.tobytes())


def main():
    p = argparse.ArgumentParser()
    sub = p.add_subparsers(required=True)
    a = sub.add_parser("prompts")
    a.add_argument("model")
    a.add_argument("out")
    a.add_argument("--int8", action="store_true")
    a.add_argument("--head16", action="store_true")
    a.add_argument("--ids")
    a.set_defaults(run=write_prompts)
    a = sub.add_parser("windows")
    a.add_argument("model")
    a.add_argument("text")
    a.add_argument("out")
    a.add_argument("--head16", action="store_true")
    a.set_defaults(run=write_windows)
    a = sub.add_parser("blocks")
    a.add_argument("out")
    a.set_defaults(run=write_blocks)
    args = p.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
