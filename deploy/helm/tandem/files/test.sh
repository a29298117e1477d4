# test.sh - what the pod of `helm test` does.
ask() { curl --silent --show-error --max-time 120 --output /tmp/answer --write-out '%{http_code}' "$@"; }
die() { echo "FAILED: $*" >&2; cat /tmp/answer >&2 || true; exit 1; }

code=$(ask "$ROUTER_URL/readyz") || die "$ROUTER_URL does not answer"
[ "$code" = 200 ] || die "/readyz says $code: no usable pair of a prefill and a decode node"
echo "ready"

if [ "$EXPECT_KEYS" = true ]; then
    code=$(ask "$ROUTER_URL/v1/models")
    [ "$code" = 401 ] || die "/v1/models without a key says $code, not 401"
    echo "a caller without key is refused"
    [ -n "${API_KEY:-}" ] || exit 0
    printf 'header = "Authorization: Bearer %s"\n' "$API_KEY" >/tmp/curlrc
else
    : >/tmp/curlrc
fi

body='{"model":"'$MODEL'","max_tokens":8,"temperature":0,"messages":[{"role":"user","content":"Say hello."}]}'
code=$(ask --config /tmp/curlrc --header 'Content-Type: application/json' --data "$body" "$ROUTER_URL/v1/chat/completions")
rm -f /tmp/curlrc
[ "$code" = 200 ] || die "a chat request says $code"
grep -q '"finish_reason"' /tmp/answer || die "the answer has no finish reason"
echo "a chat request is answered"
