#!/bin/sh
# Runs the test programs named as arguments, TEST_JOBS (2) at a time, and adds up their closing lines. A program that dies
# without one counts as one failure. Prints only failures and skips, then the sum. $RUN goes before
# each: an emulator. $SKIPS is a file of what may be skipped (tests/skips.txt): any other skip is a failure.
if [ "$1" = --one ]; then
    # One program: its report, and a file with its sums.
    t=$3
    out=$($RUN "$t" 2>&1)
    rc=$?
    line=$(printf '%s\n' "$out" | grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' | tail -n 1)
    if [ -z "$line" ]; then
        printf '%s\nFAIL %s: ended with status %d and no summary\n' "$out" "$t" "$rc"
        line='0 passed, 1 failed, 0 skipped'
    fi
    p=${line%% passed*} f=${line#*passed, } s=${line#*failed, }
    f=${f%% failed*} s=${s%% skipped*}
    if [ -n "$SKIPS" ] && [ "$s" -ne 0 ]; then
        allowed=$(printf '%s\n' "$out" | sed -n 's/^skip //p' | grep -axcE -f "$SKIPS")
        out=$(printf '%s\n' "$out" | while IFS= read -r report; do
            case $report in
            "skip "*) printf '%s\n' "${report#skip }" | grep -aqxE -f "$SKIPS" || report="FAIL ${report#skip } (not in $SKIPS)" ;;
            esac
            printf '%s\n' "$report"
        done)
        f=$((f + s - allowed)) s=$allowed
        line="$p passed, $f failed, $s skipped"
    fi
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        printf '%s\nFAIL %s: ended with status %d\n' "$out" "$t" "$rc"
        f=1
    elif [ "$f" -ne 0 ]; then
        printf '%s\n' "$out" | grep -av '^ok '
    else
        printf '%s\n' "$out" | grep -a '^skip '
    fi
    printf '%s: %s\n' "$t" "$line"
    echo "$p $f $s" >"$(mktemp "$2/sum.XXXXXX")"
    exit 0
fi

sums=$(mktemp -d) || exit 1
trap 'rm -rf "$sums"' EXIT
printf '%s\n' "$@" | xargs -P "${TEST_JOBS:-2}" -I'{}' sh -c 'o=$(sh "$0" --one "$1" "$2"); printf "%s\n" "$o"' \
    "$0" "$sums" '{}'
passed=0 failed=0 skipped=0 n=0
for f in "$sums"/sum.*; do
    [ -e "$f" ] || continue
    read -r p q s <"$f"
    passed=$((passed + p)) failed=$((failed + q)) skipped=$((skipped + s)) n=$((n + 1))
done
if [ "$n" -ne $# ]; then
    echo "FAIL $0: $n of $# programs were run to their end"
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
