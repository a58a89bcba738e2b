#!/bin/sh
# Watching `lathe serve`, with the shipped model: watching_checks.py. $LATHE is the program (./lathe).
cd "$(dirname "$0")/../.." || exit 1
# Debian's library is that of Debian's interpreter, which need not be the first of the path.
for python in python3 /usr/bin/python3; do
    if $python -c 'import prometheus_client.parser' 2>/dev/null; then
        exec $python tests/server/watching_checks.py "${LATHE:-./lathe}" models/nano "$@"
    fi
done
echo "skip test_watching: python3-prometheus-client is not installed"
echo "0 passed, 0 failed, 1 skipped"
