#!/bin/sh
# Operating `lathe serve`, with the shipped model: operations_checks.py. $LATHE is the program (./lathe).
cd "$(dirname "$0")/../.." || exit 1
for tool in python3 openssl; do
    if ! command -v $tool >/dev/null; then
        echo "skip test_operating: $tool is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done
exec python3 tests/server/operations_checks.py "${LATHE:-./lathe}" models/nano "$@"
