"""Joins gpu-bench's JSON lines with the peer's into a table: text on standard output, JSON in a file.

    python3 table.py OURS.json PEER.json TABLE.json

ratio is our time over the peer's (below 1: we are faster); pct is the share of the ceiling measured in the same run: the
read sweep for what memory bounds, the 8192^3 product for what the matrix units bound.
"""
import json
import os
import sys

PEERS = {"attn": "attn.flashinfer_fa3", "decode": "decode.flashinfer_tc", "decode.rotated": None,
         "step": "step.cublas_flashinfer", "prefill": "prefill.cublas_flashinfer", "flat": None,
         "engine_step": "step.cublas_flashinfer", "engine_prefill": "prefill.cublas_flashinfer"}
KEYS = ("op", "rows", "n", "k", "tiled", "B", "ctx", "S")
OURS = ("sampling", "in_flight", "chunk", "decode_rows", "deterministic")  # that no peer has


def lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.startswith("{")]


def case(row, keys=KEYS):
    return tuple(f"{k}={row[k]}" for k in keys if k in row)


def main():
    ours, peer = lines(sys.argv[1]), lines(sys.argv[2])
    theirs = {(row["name"], case(row)): row["us"] for row in peer}
    read = max((r["gbps"] for r in ours if r["name"] == "ceiling.read"), default=None)
    product = max((r["tflops"] for r in ours if r["name"] == "ceiling.matmul"), default=None)
    table = []
    for row in ours:
        if row["name"].startswith("ceiling"):
            continue
        us = theirs.get((PEERS.get(row["name"]), case(row)))
        compute = row["name"] in ("attn", "prefill")
        ceiling, reached = (product, row.get("tflops")) if compute else (read, row.get("gbps"))
        row["peer_us"] = us
        row["ratio"] = round(row["us_median"] / us, 3) if us else None
        row["pct_ceiling"] = round(100 * reached / ceiling, 1) if ceiling and reached else None
        table.append(row)
    print(f"ceilings: read {read} GB/s, product {product} TFLOP/s")
    print(f"{'case':64} {'ours us':>10} {'peer us':>10} {'ratio':>6} {'GB/s':>6} {'TFLOP/s':>8} {'%':>6}")
    for row in table:
        name = " ".join((row["name"],) + case(row, KEYS + OURS))
        show = [row["us_median"], row["peer_us"], row["ratio"], row.get("gbps"),
                row.get("tflops"), row["pct_ceiling"]]
        print(f"{name:64} " + " ".join(f"{'-' if v is None else v:>{w}}" for v, w in zip(show, (10, 10, 6, 6, 8, 6))))
    with open(sys.argv[3], "w", encoding="utf-8") as f:
        json.dump({"read_gbps": read, "product_tflops": product, "rows": table}, f, indent=1)


if __name__ == "__main__":
    main()
