#!/bin/sh
# A shorter soak of the server, soak.py for $SOAK_SECONDS (15), built with ThreadSanitizer in $TSAN_B: a report of a race is an exit
# code. Skipped with LATHE_QUICK, since it builds the program once more.
cd "$(dirname "$0")/../.." || exit 1
B=${TSAN_B:-build/$(uname -m)-thread}
log=$B/soak.log
why=
command -v python3 >/dev/null || why="python3 is not installed"
[ -z "$LATHE_QUICK" ] || why="it builds the program once more"
if [ -n "$why" ]; then
    echo "skip test_soak_threads: $why"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
mkdir -p "$B"
# Without the jobserver of a make that may have started this.
if env -u MAKEFLAGS -u MFLAGS make --no-print-directory -s -j2 SAN=thread B="$B" "$B/lathe" >"$log" 2>&1 &&
    python3 tests/server/soak.py "$B/lathe" models/nano "${SOAK_SECONDS:-15}" 200 >>"$log" 2>&1; then
    tail -n 1 "$log"
    echo "ok   test_soak_threads"
    echo "1 passed, 0 failed, 0 skipped"
else
    tail -n 100 "$log"
    echo "FAIL test_soak_threads"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
