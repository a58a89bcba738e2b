#!/bin/sh
# The npm package openai against the shipped model. $LATHE is the program (./lathe); the package is in build/npm
# (tests/oracle).
cd "$(dirname "$0")/../.." || exit 1
if ! [ -d build/npm/node_modules/openai ] || ! command -v node >/dev/null; then
    echo "skip test_openai: the npm package openai is not installed"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
T=$(mktemp -d) || exit 1
"${LATHE:-./lathe}" serve -m models/nano --port 0 --ctx 2048 2>"$T/err" &
pid=$!
trap 'kill $pid 2>/dev/null; wait $pid 2>/dev/null; rm -rf "$T"' EXIT
port=
for _ in $(seq 300); do
    port=$(sed -n 's/^lathe: serving .*:\([0-9]*\)$/\1/p' "$T/err")
    [ -n "$port" ] && break
    sleep 0.1
done
if [ -z "$port" ]; then
    cat "$T/err"
    echo "FAIL test_openai: the server did not start"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
node tests/server/openai_client.mjs "http://127.0.0.1:$port/v1" build/npm
