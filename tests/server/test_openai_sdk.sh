#!/bin/sh
# The npm package openai against the server, with tools: clients/openai_sdk.py.
exec sh "$(dirname "$0")/clients/run.sh" openai_sdk "$@"
