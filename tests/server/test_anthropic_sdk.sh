#!/bin/sh
# The npm package @anthropic-ai/sdk against the server: clients/anthropic_sdk.py.
exec sh "$(dirname "$0")/clients/run.sh" anthropic_sdk "$@"
