#!/bin/sh
# The npm package openai against the shipped model: clients/openai.py.
exec sh "$(dirname "$0")/clients/run.sh" openai "$@"
