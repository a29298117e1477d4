"""Joins gpu-bench's JSON lines with the peer's into a table: text on standard output, JSON in a file.

    python3 table.py OURS.json PEER.json TABLE.json [PARTS.json [SM80.json]]

ratio is our time over the peer's (below 1: we are faster); pct is the share of the ceiling measured in the same run: the
read sweep for what memory bounds, the 8192^3 product for what the matrix units bound. PARTS: how run.sh's commands ended.
SM80: the same cases with the plain kernels. Candidates follow, each case's fastest first.
"""
import json
import os
import sys

PEERS = {"attn": "attn.flashinfer_fa3", "decode": "decode.flashinfer_tc", "decode.rotated": None,
         "step": "step.cublas_flashinfer", "prefill": "prefill.cublas_flashinfer", "flat": None,
         "engine_step": "step.cublas_flashinfer", "engine_prefill": "prefill.cublas_flashinfer"}
CANDIDATES = ("step.layers", "step.chain", "step.launches")
KEYS = ("op", "rows", "n", "k", "tiled", "B", "ctx", "S")
OURS = ("sampling", "in_flight", "chunk", "decode_rows", "head", "deterministic")  # that no peer has


def lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.startswith("{")]


def case(row, keys=KEYS):
    return tuple(f"{k}={row[k]}" for k in keys if k in row)


def print_candidates(rows):
    """Case by case, fastest first: what is said of a candidate beside its time tells which it is."""
    groups = {}
    for row in rows:
        kind = row["name"].split(".")[0]
        key = (kind,) + case(row) + tuple(f"{k}={row[k]}" for k in ("chunk",) if k in row)
        groups.setdefault(key, []).append(row)
    for key, members in groups.items():
        print(" ".join(key))
        for row in sorted(members, key=lambda r: r["us_median"]):
            rest = {k: v for k, v in row.items() if k not in KEYS + ("us_median", "us_p10", "us_p90", "dtype", "chunk")}
            print(f"    {row['us_median']:>10} us  {rest}")


def print_parts(rows):
    for row in rows:
        if row["result"] != "ok":
            print(f"{row['result']:8} {row['part']}: {row['what']} ({row['seconds']} s)")
    ended = [row["result"] for row in rows]
    print("commands: " + ", ".join(f"{ended.count(r)} {r}" for r in ("ok", "failed", "timeout", "skipped")))


def main():
    ours, peer = lines(sys.argv[1]), lines(sys.argv[2])
    parts = lines(sys.argv[4]) if len(sys.argv) > 4 else []
    plain = lines(sys.argv[5]) if len(sys.argv) > 5 else []
    candidates = [row for row in ours if row["name"] in CANDIDATES]
    told = [row for row in ours if "us_median" not in row]  # checks against another program
    ours = [row for row in ours if row["name"] not in CANDIDATES and "us_median" in row]
    for row in plain:
        row["name"] = "sm_80 " + row["name"]
    theirs = {(row["name"], case(row)): row["us"] for row in peer}
    read = max((r["gbps"] for r in ours if r["name"] == "ceiling.read"), default=None)
    product = max((r["tflops"] for r in ours if r["name"] == "ceiling.matmul"), default=None)
    table = []
    for row in ours + plain:
        if row["name"].startswith("ceiling"):
            continue
        us = theirs.get((PEERS.get(row["name"]), case(row)))
        compute = row["name"] in ("attn", "prefill", "sm_80 attn")
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
        json.dump({"read_gbps": read, "product_tflops": product, "rows": table, "candidates": candidates, "checks": told,
                   "parts": parts}, f, indent=1)
    print_candidates(candidates)
    for row in told:
        print(json.dumps(row))
    print_parts(parts)


if __name__ == "__main__":
    main()
