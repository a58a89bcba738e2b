#!/bin/sh
# The operators' tests with the NEON kernels: cross-compiled, run under qemu-user, a short table of
# cases. Ends in a test program's closing line.
cross=aarch64-linux-gnu- root=/usr/aarch64-linux-gnu b=${NEON_B:-build/aarch64}
unset MAKEFLAGS MAKELEVEL RUN
for tool in ${cross}gcc qemu-aarch64; do
    if ! command -v $tool >/dev/null; then
        echo "skip test_neon: $tool is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done
if [ -n "$SAN" ]; then
    echo "skip test_neon: sanitizers are for the native build"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
cd "$(dirname "$0")/../.." || exit 1
if ! log=$(make CROSS=$cross SAN= B="$b" op-tests 2>&1); then
    printf '%s\n' "$log" | tail -n 30
    echo "FAIL test_neon: the cross build failed"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
for t in tests/op/test_*.c; do
    t=${t#tests/}
    set -- "$@" "$b/tests/${t%.c}"
done
LATHE_QUICK=1 RUN="qemu-aarch64 -L $root" sh tests/run.sh "$@"
