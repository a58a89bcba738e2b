#!/bin/sh
# Clients that go away before their prompt is made: leaving_checks.py. $LATHE is the program (./lathe).
cd "$(dirname "$0")/../.." || exit 1
for tool in python3 openssl; do
    if ! command -v $tool >/dev/null; then
        echo "skip test_leaving: $tool is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done
exec python3 tests/server/leaving_checks.py "${LATHE:-./lathe}" models/nano "$@"
