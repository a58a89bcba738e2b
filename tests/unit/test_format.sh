#!/bin/sh
# The layout of every source file is clang-format's, by the repository's .clang-format.
cd "$(dirname "$0")/../.." || exit 1
if ! command -v clang-format >/dev/null 2>&1; then
    echo "skip test_format: clang-format is not installed"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
# Other versions break lines elsewhere.
if ! clang-format --version | grep -q 'version 14\.'; then
    echo "skip test_format: clang-format 14 is needed, this is $(clang-format --version)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
bad=$(find include src server cli tools bench tests -name '*.[ch]' | sort | xargs clang-format --dry-run 2>&1 |
    grep -oE '^[^ :]+:[0-9]+' | cut -d: -f1 | sort -u)
if [ -n "$bad" ]; then
    echo "FAIL test_format: make format would change"
    echo "$bad"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
echo "1 passed, 0 failed, 0 skipped"
