#!/bin/sh
# tests/run.sh with $SKIPS: what may not be skipped fails, whatever says so, and a skip without a name does.
cd "$(dirname "$0")/../.." || exit 1
T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
passed=0 failed=0

# program NAME LINE...: one that prints these lines.
program() {
    name=$T/$1
    shift
    { echo '#!/bin/sh' && echo 'cat <<"EOT"' && printf '%s\n' "$@" && echo EOT; } >"$name"
    chmod +x "$name"
}
# it NAME SKIPS SUM PROGRAM...: that is the closing line.
it() {
    what=$1 skips=$2 want=$3
    shift 3
    got=$(SKIPS=$skips sh tests/run.sh "$@" | tail -n 1)
    if [ "$got" = "$want" ]; then
        echo "ok   test_skips.$what"
        passed=$((passed + 1))
    else
        echo "FAIL test_skips.$what: $got, expected $want"
        failed=$((failed + 1))
    fi
}

program images "ok   test_a.b" "skip test_cases.case_B72: case B72 needs images" "1 passed, 0 failed, 1 skipped"
program codex "skip test_codex: the clients are not installed (tests/server/clients/install.sh)" "0 passed, 0 failed, 1 skipped"
program both "skip test_linear.prompt_panels: there is no GPU" "skip test_page: Chromium is not installed" \
    "ok   test_page.x" "1 passed, 0 failed, 2 skipped"
program nameless "0 passed, 0 failed, 1 skipped"
program like "skip test_codex: case B72 needs images" "skip test_a.b: there is no GPU, or so" "0 passed, 0 failed, 2 skipped"

it skips_are_free "" "1 passed, 0 failed, 2 skipped" "$T/images" "$T/codex"
it what_is_listed_may_be_skipped tests/skips.txt "1 passed, 0 failed, 1 skipped" "$T/images"
it a_client_may_not tests/skips.txt "1 passed, 1 failed, 1 skipped" "$T/images" "$T/codex"
it each_for_itself tests/skips.txt "1 passed, 1 failed, 1 skipped" "$T/both"
it a_skip_has_a_name tests/skips.txt "0 passed, 1 failed, 0 skipped" "$T/nameless"
it whole_reports_count tests/skips.txt "0 passed, 2 failed, 0 skipped" "$T/like"
# What tests the clients, the page and the replicas says when it is skipped is not listed.
says=$(sed -n -e 's/.*|| skip "\(.*\)".*/test_codex: \1/p' -e 's/.*echo "skip \(.*\)"$/\1/p' tests/server/clients/run.sh tests/server/*.sh)
n=$(printf '%s\n' "$says" | grep -cxE -f tests/skips.txt)
if [ "$n" -eq 0 ] && [ "$(printf '%s\n' "$says" | wc -l)" -gt 12 ]; then
    echo "ok   test_skips.none_of_the_server"
    passed=$((passed + 1))
else
    echo "FAIL test_skips.none_of_the_server: $n of these are in tests/skips.txt: $says"
    failed=$((failed + 1))
fi
if grep -q '^export .*SKIPS=tests/skips.txt' .ci/run; then
    echo "ok   test_skips.ci_has_the_list"
    passed=$((passed + 1))
else
    echo "FAIL test_skips.ci_has_the_list"
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
