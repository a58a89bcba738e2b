#!/bin/sh
# What Open WebUI sends, against the server: clients/open_webui.py.
exec sh "$(dirname "$0")/clients/run.sh" open_webui "$@"
