#!/bin/sh
# The server's limits as they are without options, and a thousand clients: crowd_checks.py. $LATHE is the program (./lathe).
cd "$(dirname "$0")/../.." || exit 1
if ! command -v python3 >/dev/null; then
    echo "skip test_crowd: python3 is not installed"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec python3 tests/server/crowd_checks.py "${LATHE:-./lathe}" models/nano "$@"
