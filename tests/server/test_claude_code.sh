#!/bin/sh
# Claude Code against the server: clients/claude_code.py.
exec sh "$(dirname "$0")/clients/run.sh" claude_code "$@"
