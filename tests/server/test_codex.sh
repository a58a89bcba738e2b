#!/bin/sh
# Codex against the server: clients/codex.py.
exec sh "$(dirname "$0")/clients/run.sh" codex "$@"
