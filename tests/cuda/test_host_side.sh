#!/bin/sh
# The host's side of the CUDA backend over a runtime that needs no GPU, where there are CUDA's headers. With the
# sanitizers of the run, if it has some.
cd "$(dirname "$0")/../.." || exit 1
cuda=${CUDA_HOME:-/usr/local/cuda}
if [ ! -f "$cuda/include/cuda_runtime_api.h" ]; then
    echo "skip test_host_side: there is no $cuda/include/cuda_runtime_api.h"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
# shellcheck disable=SC2046,SC2086
if ! out=$(${CC:-cc} -std=c11 -O1 -g -Wall -Wextra -Werror ${SAN:+-fsanitize=$SAN} -pthread -ffunction-sections -Wl,--gc-sections -D_POSIX_C_SOURCE=200809L \
    -DLATHE_CUDA '-DLATHE_CUDA_SMS="80 90 120a"' -Iinclude -Isrc -Itests -isystem "$cuda/include" \
    -o "$T/test_host_side" tests/cuda/host_side.c tests/cuda/fake_runtime.c tests/test.c src/op/cuda/backend.c \
    src/op/cuda/load.c src/op/memory.c src/op/load.c src/op/host.c src/tensor/tensor.c src/tensor/number.c \
    src/base/array.c src/base/error.c src/base/file.c src/base/buf.c src/base/thread.c src/base/utf8.c src/base/log.c -lm 2>&1); then
    printf '%s\n' "$out"
    echo "FAIL test_host_side"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
"$T/test_host_side"
