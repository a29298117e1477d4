"""The demo's question by the float oracle: its prompt, the first greedy tokens of its answer, how clear each of them is.

    demo.py MODEL OUT.json     (Python of requirements.txt; a minute on two cores)

gap: logit of the best token less that of the second. Read by tests/integration/model_test.py.
"""
import json
import os
import re
import sys

import numpy as np

import oracle

N_TOKENS = 12


def question():
    """The one in deploy/local/demo.py, so that this golden is of what newcomers see."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "local", "demo.py")
    with open(path, encoding="utf-8") as f:
        return re.search(r'^QUESTION = "(.*)"$', f.read(), re.M)[1]


def main():
    m = oracle.Llama(sys.argv[1], False, False)
    asked = question()
    ids = list(m.tokenizer().encode(oracle.CHAT.format(asked)).ids)
    out = {"model_sha256": m.sha.hex(), "question": asked, "prompt": list(ids), "answer": [], "gap": []}
    for _ in range(N_TOKENS):
        logits = m.mul(m.hidden([ids])[0][-1:], m.head)[0]
        best, second = np.argsort(-logits, kind="stable")[:2]
        out["answer"].append(int(best))
        out["gap"].append(round(float(logits[best] - logits[second]), 4))
        ids.append(int(best))
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        json.dump(out, f)
        f.write("\n")


if __name__ == "__main__":
    main()
