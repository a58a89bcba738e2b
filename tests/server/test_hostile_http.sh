#!/bin/sh
# What hostile pages and clients get: hostile_checks.py. $LATHE is the program (./lathe); LATHE_QUICK leaves out what takes half a
# minute.
cd "$(dirname "$0")/../.." || exit 1
if ! command -v python3 >/dev/null; then
    echo "skip test_hostile_http: python3 is not installed"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec python3 tests/server/hostile_checks.py "${LATHE:-./lathe}" models/nano "$@"
