#!/bin/sh
# Continue's command line against the server: clients/continue_cli.py.
exec sh "$(dirname "$0")/clients/run.sh" continue_cli "$@"
