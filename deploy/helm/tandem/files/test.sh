# test.sh - what the pod of `helm test` does.
ca=/etc/tandem/ca/ca.crt
cert=/etc/tandem/client-cert/tls.crt
work=$(mktemp -d)

ask() { curl --silent --show-error --max-time 120 --output "$work/answer" --write-out '%{http_code}' --config "$work/curlrc" "$@"; }
die() { echo "FAILED: $*" >&2; cat "$work/answer" >&2 || true; exit 1; }

: >"$work/curlrc"
if [ "$TLS" != off ]; then
    if [ -e $ca ]; then
        echo "cacert = $ca" >>"$work/curlrc"
    else
        echo "the TLS Secret has no ca.crt: the router's certificate is not verified"
        echo insecure >>"$work/curlrc"
    fi
fi
if [ "$TLS" = mutual ]; then
    ! ask "$ROUTER_URL/readyz" 2>/dev/null || die "a caller without a certificate is let in"
    echo "a caller without a certificate is refused"
    [ -e $cert ] || exit 0
    printf 'cert = %s\nkey = %s\n' $cert ${cert%.crt}.key >>"$work/curlrc"
fi

code=$(ask "$ROUTER_URL/readyz") || die "$ROUTER_URL does not answer"
[ "$code" = 200 ] || die "/readyz says $code: no usable pair of a prefill and a decode node"
echo "ready"

if [ "$EXPECT_KEYS" = true ]; then
    code=$(ask "$ROUTER_URL/v1/models")
    [ "$code" = 401 ] || die "/v1/models without a key says $code, not 401"
    echo "a caller without key is refused"
    [ -n "${API_KEY:-}" ] || exit 0
    printf 'header = "Authorization: Bearer %s"\n' "$API_KEY" >>"$work/curlrc"
fi

body='{"model":"'$MODEL'","max_tokens":8,"temperature":0,"messages":[{"role":"user","content":"Say hello."}]}'
code=$(ask --header 'Content-Type: application/json' --data "$body" "$ROUTER_URL/v1/chat/completions")
rm -f "$work/curlrc"
[ "$code" = 200 ] || die "a chat request says $code"
grep -q '"finish_reason"' "$work/answer" || die "the answer has no finish reason"
echo "a chat request is answered"
