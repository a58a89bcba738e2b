#!/bin/sh
# The page in headless Chromium: clients/page.py.
exec sh "$(dirname "$0")/clients/run.sh" page "$@"
