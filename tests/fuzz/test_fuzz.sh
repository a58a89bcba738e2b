#!/bin/sh
# Runs every fuzz target for $FUZZ_SECONDS (10) on its kept corpus and on what it found before, which
# lies in $FUZZ_B/corpus. An input that breaks a target is left in $FUZZ_B/found. Arguments name the
# targets to run ("json parse"), none means all. `make fuzz` builds them.
cd "$(dirname "$0")/../.." || exit 1
seconds=${FUZZ_SECONDS:-10}
B=${FUZZ_B:-build/$(uname -m)-fuzz}
passed=0 failed=0 skipped=0

targets=$*
if [ -z "$targets" ]; then
    for f in tests/fuzz/fuzz_*.c; do
        t=${f##*/fuzz_}
        targets="$targets ${t%.c}"
    done
fi

probe() {
    dir=$(mktemp -d) || return 1
    echo 'int LLVMFuzzerTestOneInput(const char *, unsigned long);
          int LLVMFuzzerTestOneInput(const char *s, unsigned long n) { return s && n ? 0 : 0; }' \
        >"$dir/probe.c"
    clang -fsanitize=fuzzer,address,undefined -o "$dir/probe" "$dir/probe.c" 2>/dev/null
    probed=$?
    rm -rf "$dir"
    return $probed
}

can_build=true
probe || can_build=false
for t in $targets; do
    if ! $can_build; then
        echo "skip fuzz_$t: no clang with libFuzzer (clang, libclang-rt-14-dev)"
        skipped=$((skipped + 1))
        continue
    fi
    mkdir -p "$B/corpus/$t" "$B/found" "tests/fuzz/corpus/$t"
    log=$B/fuzz_$t.log
    # Without the jobserver of a make that may have started this.
    if ! env -u MAKEFLAGS -u MFLAGS make --no-print-directory -s -j2 FUZZ_B="$B" "fuzz-$t" >"$log" 2>&1; then
        tail -n 20 "$log"
        echo "FAIL fuzz_$t: does not build"
        failed=$((failed + 1))
    elif "$B/tests/fuzz/fuzz_$t" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
        -max_len=4096 -artifact_prefix="$B/found/$t-" "$B/corpus/$t" "tests/fuzz/corpus/$t" \
        >"$log" 2>&1; then
        echo "ok   fuzz_$t: $(sed -n 's/^Done \([0-9]*\) runs.*/\1 runs/p' "$log")"
        passed=$((passed + 1))
    else
        grep -a -m 1 -A 12 -E 'ERROR|SUMMARY|deadly|runtime error|Assertion' "$log"
        grep -a 'Test unit written' "$log"
        echo "FAIL fuzz_$t: see $log"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
