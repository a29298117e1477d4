"""The int8 numerics of kernels/NUMERICS.md in numpy, every step in binary32 in its stated order: an engine must agree
with it to the bit, not to rounding.

    exact.py prompts MODEL OUT [--ids FILE]     logits of a list of prompts (TDLOGIT1)
    exact.py windows MODEL GOLDEN OUT           GOLDEN's windows (TDWINDW1) with the int8 half made again

Why: oracle.py keeps norms and attention in float64. One rounding that falls the other way in an early layer changes later
ones until all differ, so agreement with it is that of two draws of the same noise (97 % of best tokens). fma is a float64
product and sum rounded to float32: once in 2^29 steps it may differ from the true one.
"""
import argparse
import struct

import numpy as np

import oracle

F = np.float32
LANES, CHUNK = 16, 256


def fma(a, b, c):
    return (a.astype(np.float64) * b + c).astype(F)


def fold16(lane):
    """[..., 16] -> [...]"""
    for step in (8, 4, 2, 1):
        lane = lane[..., :step] + lane[..., step:2 * step]
    return lane[..., 0]


def exp(x):
    live = x > F(-87)
    x = np.minimum(x, F(88))
    n = np.rint(x * F(float.fromhex("0x1.715476p+0")))
    r = fma(n, F(float.fromhex("-0x1.63p-1")), x)
    r = fma(n, F(float.fromhex("0x1.bd0106p-13")), r)
    p = np.full_like(x, F(1) / F(5040))
    for c in (F(1) / F(720), F(1) / F(120), F(1) / F(24), F(1) / F(6), F(0.5), F(1), F(1)):
        p = fma(p, r, c)
    return np.where(live, np.ldexp(p, np.where(live, n, 0).astype(np.int32)), F(0))


class Exact(oracle.Llama):
    def __init__(self, path, *_):
        super().__init__(path, True, True)

    def vector(self, name):
        return np.array(self.t[name].data, F)

    def mul(self, x, w):
        return oracle.product_int8(x, w, self.head_top if w is self.head else 127)

    def norm(self, x, w):
        lane = np.zeros((len(x), LANES), F)
        for i in range(0, x.shape[1], LANES):
            lane = fma(x[:, i:i + LANES], x[:, i:i + LANES], lane)
        r = F(1) / np.sqrt(fold16(lane) / F(x.shape[1]) + F(self.eps))
        return x * r[:, None] * w

    def rope(self, x, pos, scale=F(1)):
        angle = pos[:, None] * self.freq.astype(np.float64)
        c, s = np.cos(angle).astype(F)[:, None], np.sin(angle).astype(F)[:, None]
        out = x.copy()
        a, b = x[..., 0:self.rope_dim:2], x[..., 1:self.rope_dim:2]
        out[..., 0:self.rope_dim:2] = a * c - b * s
        out[..., 1:self.rope_dim:2] = a * s + b * c
        return out * scale

    def chunk(self, q, k, v, seen):
        """One chunk: q [H, n, D], k and v [H, t, D], seen [n, t] -> m, l [H, n], o [H, n, D]."""
        s = np.zeros((q.shape[0], q.shape[1], k.shape[1]), F)
        for d in range(self.head_dim):
            s = fma(q[:, :, d, None], k[:, None, :, d], s)
        m = np.where(seen, s, F(-np.inf)).max(-1)
        p = np.where(seen, exp(s - m[..., None]), F(0))
        lane = np.zeros((*m.shape, LANES), F)
        o = np.zeros_like(q)
        for t in range(p.shape[-1]):
            lane[..., t % LANES] += p[..., t]
            o = fma(p[..., t, None], v[:, None, t], o)
        return m, fold16(lane), o

    def attend(self, q, k, v):
        group = self.n_heads // self.n_kv
        q = np.ascontiguousarray(q.transpose(1, 0, 2))
        k = np.repeat(oracle.to_bf16(k), group, 1).transpose(1, 0, 2)
        v = np.repeat(oracle.to_bf16(v), group, 1).transpose(1, 0, 2)
        n = q.shape[1]
        for c in range(0, n, CHUNK):
            end = min(c + CHUNK, n)
            rows = slice(c, n)  # those that see this chunk
            seen = np.arange(c, n)[:, None] >= np.arange(c, end)
            m, l, o = self.chunk(q[:, rows], k[:, c:end], v[:, c:end], seen)
            if c == 0:
                big_m, big_l, big_o = m, l, o
                continue
            new = np.maximum(big_m[:, rows], m)
            a, b = exp(big_m[:, rows] - new), exp(m - new)
            big_l[:, rows] = fma(big_l[:, rows], a, l * b)
            big_o[:, rows] = fma(big_o[:, rows], a[..., None], o * b[..., None])
            big_m[:, rows] = new
        return (big_o * (F(1) / big_l)[..., None]).transpose(1, 0, 2).reshape(n, -1)

    def hidden(self, sequences):
        cuts = np.cumsum([len(s) for s in sequences])[:-1]
        pos = np.concatenate([np.arange(len(s), dtype=np.float64) for s in sequences])
        heads = lambda x: x.reshape(len(x), -1, self.head_dim)
        scale = F(1) / np.sqrt(F(self.head_dim))
        h = self.embd.f32[np.concatenate(sequences)]
        for i in range(self.n_layers):
            w = lambda name: self.weight(f"blk.{i}.{name}.weight")
            x = self.norm(h, self.vector(f"blk.{i}.attn_norm.weight"))
            q = self.rope(heads(self.mul(x, w("attn_q"))), pos, scale)
            k = self.rope(heads(self.mul(x, w("attn_k"))), pos)
            v = heads(self.mul(x, w("attn_v")))
            parts = [np.split(a, cuts) for a in (q, k, v)]
            o = np.concatenate([self.attend(*a) for a in zip(*parts)])
            h = h + self.mul(o, w("attn_output"))
            x = self.norm(h, self.vector(f"blk.{i}.ffn_norm.weight"))
            g, u = self.mul(x, w("ffn_gate")), self.mul(x, w("ffn_up"))
            h = h + self.mul(g / (F(1) + exp(-g)) * u, w("ffn_down"))
            assert h.dtype == F
        return np.split(self.norm(h, self.vector("output_norm.weight")), cuts)


def write_prompts(args):
    args.int8 = args.head16 = True
    oracle.Llama = Exact
    oracle.write_prompts(args)


def read_windows(path):
    """(SHA-256, windows of ids, their float half as bytes)"""
    data = open(path, "rb").read()
    assert data[:8] == b"TDWINDW1"
    n_windows, n = struct.unpack_from("<2I", data, 40)
    half = 8 * n + 8
    starts = [48 + i * (4 * n + 2 * half) for i in range(n_windows)]
    windows = [np.frombuffer(data, "<i4", n, at).tolist() for at in starts]
    return data[8:40], windows, [data[at + 4 * n:at + 4 * n + half] for at in starts]


def write_windows(args):
    m = Exact(args.model)
    sha, windows, floats = read_windows(args.golden)
    assert sha == m.sha
    out = open(args.out, "wb")
    out.write(b"TDWINDW1" + sha + struct.pack("<2I", len(windows), len(windows[0])))
    for ids, half in zip(windows, floats):
        (best, margin, nll), = oracle.window_stats(m, [ids])
        out.write(np.array(ids, "<i4").tobytes() + half)
        out.write(best.astype("<i4").tobytes() + margin.astype("<f4").tobytes() + struct.pack("<d", nll.sum()))
        out.flush()


def main():
    p = argparse.ArgumentParser()
    sub = p.add_subparsers(required=True)
    a = sub.add_parser("prompts")
    a.add_argument("model")
    a.add_argument("out")
    a.add_argument("--ids")
    a.set_defaults(run=write_prompts)
    a = sub.add_parser("windows")
    a.add_argument("model")
    a.add_argument("golden")
    a.add_argument("out")
    a.set_defaults(run=write_windows)
    args = p.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
