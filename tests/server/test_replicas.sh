#!/bin/sh
# Two of `lathe serve` behind HAProxy: replica_checks.py with docs/haproxy.cfg; and the unit for systemd. $LATHE is the
# program (./lathe).
cd "$(dirname "$0")/../.." || exit 1
for tool in python3 haproxy; do
    if ! command -v $tool >/dev/null; then
        echo "skip test_replicas: $tool is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done
exec python3 tests/server/replica_checks.py "${LATHE:-./lathe}" models/nano "$@"
