#!/bin/sh
# Installs the public implementations that tests compare with into $1 (build/npm). Where that is not
# possible it says why and succeeds: the tests that need them are then skipped, by name.
set -u
here=$(dirname "$0")
mkdir -p "$1"
if ! command -v npm >/dev/null 2>&1; then
    echo "oracles: npm is not installed"
    exit 0
fi
cp "$here/package.json" "$here/package-lock.json" "$1"
if npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund >"$1/npm.log" 2>&1; then
    touch "$1/installed"
else
    echo "oracles: npm ci failed, see $1/npm.log"
fi
