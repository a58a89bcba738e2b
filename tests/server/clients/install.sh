#!/bin/sh
# Installs the clients that the server is tested with into build/clients, from npm, at the versions of package-lock.json.
# 1.6 GB: `make check` does without them and skips their tests by name; .ci/run installs them. Each has a licence of its own;
# Claude Code's is no free one. Not by `npm ci`, which refuses a lock file without the builds for other systems.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
to=$(cd "$here/../../.." && pwd)/build/clients
mkdir -p "$to"
if cmp -s "$here/package-lock.json" "$to/installed"; then
    exit 0
fi
rm -f "$to/installed"
cp "$here/package.json" "$here/package-lock.json" "$to"
npm install --prefix "$to" --ignore-scripts --no-audit --no-fund >"$to/npm.log" 2>&1 || {
    tail -n 5 "$to/npm.log"
    exit 1
}
cp "$here/package-lock.json" "$to/installed"
