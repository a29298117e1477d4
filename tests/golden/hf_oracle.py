"""hf_oracle.py TANDEMCTL OUT_DIR: what `transformers` (float32, CPU) and `tokenizers` make of the tiny random models of
`tandemctl make-model`. Writes OUT_DIR/SHAPE.bin (logits, format TDLOGIT1 of README.md) and OUT_DIR/SHAPE.json (token ids
of texts). hf.sh installs what it needs and calls it."""
import hashlib
import json
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

SHAPES = ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"]
N_TOP, N_SAMPLED, N_GREEDY = 4, 12, 24
N_LONG = 300  # longer than tiny-mistral's window of 72, and into the second attention chunk of 256
TEXTS = [
    "the cluster answers each request",
    "Hello, world! It's 12345 o'clock; I'LL see you're 3.14159 metres off.",
    "  leading spaces,\ttabs\n\nand   runs of them   \n",
    "gr\u00fc\u00dfe, na\u00efve caf\u00e9, na\u0131ve; e\u0301 and \u00e9 are one under NFC",
    "\u4e16\u754c\u4f60\u597d \u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 "
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 and \u00bd \u2163 \u0663 digits",
    "for (int i = 0; i < n; i++) { sum += a[i]; } // done\r\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "HTTPServer and McDonald's iPhone; \u01c5A e\u0301A \u0301AB path//to/\n/file",
    "",
]


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def put_prompt(out, model, ids, sampled):
    rows = logits_of(model, ids)
    out.write(struct.pack("<I", len(ids)) + np.array(ids, "<i4").tobytes())
    for row in rows:
        top = np.argsort(-row, kind="stable")[:N_TOP]
        out.write(top.astype("<i4").tobytes() + row[top].astype("<f4").tobytes())
        out.write(row[sampled].astype("<f4").tobytes())
        out.write(struct.pack("<f", np.sqrt(np.mean(row**2))))


def greedy(model, ids):
    for _ in range(N_GREEDY):
        ids = ids + [int(np.argmax(logits_of(model, ids)[-1]))]
    return ids


def write_logits(path, folder, model, tokenizer):
    vocab = model.config.vocab_size
    rng = np.random.default_rng(7)
    sampled = np.sort(rng.choice(vocab, N_SAMPLED, replace=False))
    sha = hashlib.sha256(open(folder + "/model.safetensors", "rb").read()).digest()
    chat = tokenizer.apply_chat_template([{"role": "user", "content": TEXTS[1]}], add_generation_prompt=True,
                                         tokenize=False)
    prompts = [[int(i) for i in rng.integers(4, len(tokenizer), N_LONG)],
               greedy(model, tokenizer(chat, add_special_tokens=False)["input_ids"])]
    with open(path, "wb") as out:
        out.write(b"TDLOGIT1" + sha)
        out.write(struct.pack("<IIII", len(prompts), vocab, N_TOP, N_SAMPLED) + sampled.astype("<i4").tobytes())
        for ids in prompts:
            put_prompt(out, model, ids, sampled)
    return chat, len(prompts[1]) - N_GREEDY


def main():
    tandemctl, out_dir = sys.argv[1:3]
    torch.manual_seed(0)
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([tandemctl, "make-model", "--shape", shape, "--seed", "1", folder], check=True)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                                      attn_implementation="eager")
            model.eval()
            chat, n_prompt = write_logits(f"{out_dir}/{shape}.bin", folder, model, tokenizer)
            texts = [{"text": t, "ids": tokenizer(t)["input_ids"]} for t in TEXTS]
            with open(f"{out_dir}/{shape}.json", "w", encoding="ascii") as f:
                json.dump({"chat": chat, "n_prompt": n_prompt, "eos": tokenizer.eos_token_id,
                           "bos": tokenizer.bos_token_id, "texts": texts}, f, indent=0)
                f.write("\n")


if __name__ == "__main__":
    main()
