#!/bin/sh
# fetch.sh - the init container of model.fetch: brings each file of $FETCH_LIST (lines "name sha256 url") into $MODEL_DIR.
# A file that is there with its mark is not read again, so a shared volume is filled once. Pods that start together may
# each download a file; it becomes visible under its name only after its SHA-256 is the listed one.
set -eu
umask 027

fetch() {
    name=$1 sha=$2 url=$3
    target=$MODEL_DIR/$name
    if [ -e "$target" ] && [ "$(cat "$target.sha256" 2>/dev/null || true)" = "$sha" ]; then
        echo "have $name"
        return 0
    fi
    case $name in */*) mkdir -p "$MODEL_DIR/${name%/*}" ;; esac
    part=$target.${HOSTNAME:-pod}.part
    echo "fetching $name"
    # The token goes through a file, not through the command line; curl drops it where a redirect leaves the host.
    if [ -n "${FETCH_TOKEN_FILE:-}" ]; then
        { printf 'header = "Authorization: Bearer '; tr -d '\r\n' <"$FETCH_TOKEN_FILE"; printf '"\n'; } >/tmp/curlrc
    else
        : >/tmp/curlrc
    fi
    curl --config /tmp/curlrc --fail --silent --show-error --location --proto '=https,http' --retry 8 --retry-connrefused \
        --connect-timeout 20 --speed-limit 1024 --speed-time 60 --continue-at - --output "$part" "$url"
    rm -f /tmp/curlrc
    if ! echo "$sha  $part" | sha256sum --check --status; then
        echo "$name: the SHA-256 is not the listed one" >&2
        rm -f "$part"
        return 1
    fi
    mv -f "$part" "$target"
    printf '%s' "$sha" >"$target.sha256"
}

while read -r name sha url; do
    [ -z "$name" ] || fetch "$name" "$sha" "$url" </dev/null
done <"$FETCH_LIST"
