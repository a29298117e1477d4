"""The CUDA engine against transformers, on random-weight models of tandemctl's shapes.

    python3 tests/bench/gpu/hf_check.py ENGINE_CHECK TANDEMCTL [SHAPE ...]     (needs torch with a GPU, transformers)

ENGINE_CHECK may bring an option: "build/tests/bench/gpu/engine-check --sm_80".

For each shape: 64 greedy ids behind a prompt by decode steps, then every token's logits by one chunk, and the same by
transformers in bf16 and in float32, the oracle. Ours must be as near to the oracle as theirs in bf16, and each greedy id
as good as the oracle's best, given what stands before it, up to that rounding. Prints one JSON line each; exits 1 on a miss.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

PROMPT = 600


def load(folder):
    make = transformers.AutoModelForCausalLM.from_pretrained
    return make(folder, dtype=torch.bfloat16, attn_implementation="eager").cuda().eval()


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor(ids, device="cuda").unsqueeze(0)).logits[0].float().cpu().numpy()


def distance(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def ours(program, what, folder, ids, dtype):
    name = os.path.join(tempfile.mkdtemp(), "x")
    np.array(ids, dtype=np.int32).tofile(name + ".in")
    subprocess.run([*program.split(), what, folder, name + ".in", name + ".out"], check=True, stderr=subprocess.PIPE)
    return np.fromfile(name + ".out", dtype=dtype)


def gap_of(oracle, chosen):
    """How much worse than its best the oracle finds each chosen id."""
    return oracle.max(1) - oracle[np.arange(len(chosen)), chosen]


def check(program, ctl, shape):
    folder = os.path.join(tempfile.mkdtemp(), shape)
    subprocess.run([ctl, "make-model", "--shape", shape, "--seed", "1", folder], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        vocab = json.load(f)["vocab_size"]
    ids = [int(i) for i in np.random.default_rng(7).integers(0, vocab, PROMPT)]
    more = [int(i) for i in ours(program, "greedy", folder, ids, np.int32)]
    got = ours(program, "logits", folder, ids + more, np.float32).reshape(-1, vocab)
    model = load(folder)
    theirs = logits_of(model, ids + more)
    oracle = logits_of(model.float(), ids + more)
    del model  # the next one may need its memory, and the disk
    torch.cuda.empty_cache()
    shutil.rmtree(os.path.dirname(folder))
    made = slice(PROMPT - 1, PROMPT - 1 + len(more))
    noise = float(np.sqrt(np.mean((theirs - oracle) ** 2)))
    ours_gap, theirs_gap = gap_of(oracle[made], more), gap_of(oracle[made], theirs[made].argmax(1))
    line = {"name": "transformers", "shape": shape, "engine_check": os.path.basename(program),
            "theirs_bf16_to_f32": distance(theirs, oracle),
            "ours_to_f32": distance(got, oracle), "ours_to_bf16": distance(got, theirs),
            "best_token_same": float(np.mean(got.argmax(1) == oracle.argmax(1))),
            "theirs_best_token_same": float(np.mean(theirs.argmax(1) == oracle.argmax(1))),
            "greedy_same": float(np.mean(ours_gap == 0)), "greedy_worst_gap_in_noise": float(ours_gap.max() / noise),
            "theirs_worst_gap_in_noise": float(theirs_gap.max() / noise),
            "decode_to_prefill_worst_gap_in_noise": float(gap_of(got[made], more).max() / noise)}
    line = {k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}
    line["ok"] = bool(line["ours_to_f32"] <= 1.2 * line["theirs_bf16_to_f32"] + 1e-3 and
                      ours_gap.max() <= max(8 * noise, theirs_gap.max()))
    print(json.dumps(line), flush=True)
    return line["ok"]


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    results = [check(sys.argv[1], sys.argv[2], shape) for shape in sys.argv[3:] or ("tiny-llama", "tiny-qwen2", "tiny-qwen3")]
    sys.exit(0 if all(results) else 1)
