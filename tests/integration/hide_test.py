"""The transfer hides: KV leaves layer by layer while the rest of the prompt is still computed.

Two fault points make a machine of known speed: step.layer.pause holds every layer of the prefill node once its K and V
are final, xfer.slice.delay makes a link on which one slice (a layer of a chunk) takes a fixed time. Their delays, not
this machine, decide the ratios below. What happened when is read from debug lines, all on one monotonic clock.
"""
import re

from harness import cluster, run, tiny_model, tokens_of, wait_for

LAYERS = 8
CHUNKS = 2
CHUNK_TOKENS = 64
PAUSE_US = 70000  # below 20 lines a second, which is what a log site may write
MODEL = tiny_model(seed=5, layers=LAYERS)
PROMPT = [5 + i % 90 for i in range(CHUNKS * CHUNK_TOKENS)]
SHARE = 0.8  # of the prefill time that the whole transfer takes


class Timeline:
    """Of one request: when each layer was final, when slices left and how many bytes had landed when; microseconds."""

    def __init__(self, cl):
        prefill, decode = cl.nodes["prefill-0"].log(), cl.nodes["decode-0"].log()
        layers = re.findall(r'msg="layer final" ticket=(\d+) layer=(\d+) at_us=(\d+)', prefill)
        self.layers = [int(at) for _, _, at in layers]
        self.first_ticket = [int(at) for t, _, at in layers if t == layers[0][0]]
        self.posted = [int(at) for at in re.findall(r'msg="chunk pushed" .* first_us=(\d+)', prefill)]
        landed = re.findall(r'msg="slices landed" land=\w+ slices=\d+ bytes=(\d+) last_us=(\d+)', decode)
        self.landed = [(int(n), int(at)) for n, at in landed]
        pushed = re.search(r'msg="pf_push" .* kv_bytes=(\d+) .* exposed_us=(\d+)', prefill)
        self.bytes, self.exposed = int(pushed[1]), int(pushed[2])
        self.prefill_us = self.layers[-1] - self.layers[0] + PAUSE_US

    def landed_by(self, when):
        return max([n for n, at in self.landed if at <= when], default=0)


def one_request(*prefill_faults):
    """Runs the prompt once through 1P+1D; returns its timeline."""
    faults = ",".join(("step.layer.pause=delay:us=%d" % PAUSE_US,) + prefill_faults)
    args = ["--prefill-chunk", str(CHUNK_TOKENS), "--max-num-batched-tokens", str(CHUNK_TOKENS), "--fault", faults]
    with cluster(1, 1, model=MODEL, time_scale=1, prefill_args=args, node=["--log-level", "debug"]) as cl:
        assert len(tokens_of(cl.router.port("http"), PROMPT, max_tokens=4, ignore_eos=True)) == 4
        wait_for(lambda: 'msg="pf_push"' in cl.nodes["prefill-0"].log(), 10, "the end on the prefill node")
        return Timeline(cl)


def slice_delay():
    """So that all slices together take SHARE of the prefill time, measured without a slow link."""
    t = one_request()
    assert len(t.layers) == LAYERS * CHUNKS, t.layers
    return int(t.prefill_us * SHARE / (LAYERS * CHUNKS))


DELAY_US = slice_delay()


def broken_claims(t):
    """Those of the three claims that do not hold. A layer is computed when the pause after its K and V is over."""
    broken = {}
    late = t.posted[0] - (t.first_ticket[1] + PAUSE_US)
    if late > 0:
        broken["first slice"] = f"it left {late} us after layer 2 of the first chunk was computed"
    share = t.landed_by(t.layers[-1] + PAUSE_US) / t.bytes
    if share < 0.9:
        broken["bytes"] = f"only {share:.0%} had landed when the last layer was computed"
    if t.exposed > 2 * DELAY_US:
        broken["exposed"] = f"{t.exposed} us, and the last layer's share is {DELAY_US} us"
    return broken


def test_slices_leave_while_layers_are_computed():
    t = one_request("xfer.slice.delay=delay:us=%d" % DELAY_US)
    assert t.landed[-1][0] == t.bytes > 0
    broken = broken_claims(t)
    assert not broken, broken


def test_sending_at_the_end_breaks_every_claim():
    t = one_request("xfer.slice.delay=delay:us=%d" % DELAY_US, "xfer.at.end=fail")
    assert t.landed[-1][0] == t.bytes > 0
    broken = broken_claims(t)
    assert len(broken) == 3, broken
    # The link is as slow as meant: here nothing but its own time is between the slices of a chunk.
    took = t.landed[-1][1] - t.posted[-1]
    assert 0.9 <= took / (DELAY_US * (LAYERS - 1)) <= 2, (took, DELAY_US)


if __name__ == "__main__":
    run(globals())
