#!/bin/sh
# Runs the test programs named as arguments and adds up their closing lines. A program that dies
# without one counts as one failure. Prints only failures and skips, then the sum. $RUN goes before
# each: an emulator.
passed=0 failed=0 skipped=0
for t in "$@"; do
    out=$($RUN "$t" 2>&1)
    rc=$?
    line=$(printf '%s\n' "$out" | grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' | tail -n 1)
    if [ -z "$line" ]; then
        printf '%s\nFAIL %s: ended with status %d and no summary\n' "$out" "$t" "$rc"
        failed=$((failed + 1))
        continue
    fi
    p=${line%% passed*} f=${line#*passed, } s=${line#*failed, }
    f=${f%% failed*} s=${s%% skipped*}
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        printf '%s\nFAIL %s: ended with status %d\n' "$out" "$t" "$rc"
        f=1
    elif [ "$f" -ne 0 ]; then
        printf '%s\n' "$out" | grep -av '^ok '
    else
        printf '%s\n' "$out" | grep -a '^skip '
    fi
    printf '%s: %s\n' "$t" "$line"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
