#!/bin/sh
# `lathe serve` whose device fails: device_loss_checks.py. $FAILING_LATHE is the program (failing_lathe.c).
cd "$(dirname "$0")/../.." || exit 1
for tool in python3 openssl; do
    if ! command -v $tool >/dev/null; then
        echo "skip test_device_loss: $tool is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done
exec python3 tests/server/device_loss_checks.py "${FAILING_LATHE:?}" models/nano "$@"
