#!/bin/sh
# run.sh NAME [CHECK...]: NAME.py beside this file, in a network namespace that has only the loopback interface. $LATHE is
# the program (./lathe), $SCRIPTED_SERVER the scripted server. Skipped by name where the client is not installed.
cd "$(dirname "$0")/../../.." || exit 1
name=$1
shift
has() {
    command -v "$1" >/dev/null
}
skip() {
    echo "skip test_$name: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
has python3 || skip "python3 is not installed"
case $name in
page) has chromium-headless-shell || has chromium || has google-chrome || skip "Chromium is not installed" ;;
openai | openai_sdk) [ -d build/npm/node_modules/openai ] || skip "the npm package openai is not installed" ;;
esac
case $name in
page | open_webui) ;;
*) [ -e build/clients/installed ] || skip "the clients are not installed (tests/server/clients/install.sh)" ;;
esac
unshare -rn true 2>/dev/null || skip "network namespaces are not allowed here"
exec unshare -rn python3 "tests/server/clients/$name.py" "$@"
