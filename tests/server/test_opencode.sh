#!/bin/sh
# opencode against the server: clients/opencode.py.
exec sh "$(dirname "$0")/clients/run.sh" opencode "$@"
