#!/bin/sh
# A short soak of the server: soak.py, for $SOAK_SECONDS (20; make soak: 300). $LATHE is the program (./lathe). So soon after the
# start memory still grows, which therefore counts from 300 s on only.
cd "$(dirname "$0")/../.." || exit 1
if ! command -v python3 >/dev/null; then
    echo "skip test_soak: python3 is not installed"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
if python3 tests/server/soak.py "${LATHE:-./lathe}" models/nano "${SOAK_SECONDS:-20}" 200; then
    echo "ok   test_soak"
    echo "1 passed, 0 failed, 0 skipped"
else
    echo "FAIL test_soak"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
