#!/bin/sh
# Qwen Code against the server: clients/qwen_code.py.
exec sh "$(dirname "$0")/clients/run.sh" qwen_code "$@"
