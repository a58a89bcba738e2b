#!/bin/sh
# The GPU's kernels compile, for one compute capability, where there is an nvcc that make takes. Nothing is run.
unset MAKEFLAGS MAKELEVEL RUN
cd "$(dirname "$0")/../.." || exit 1
nvcc=${NVCC:-${CUDA_HOME:-/usr/local/cuda}/bin/nvcc}
if ! command -v "$nvcc" >/dev/null; then
    echo "skip test_cuda.kernels_compile: there is no $nvcc"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
if [ -n "$SAN" ]; then
    echo "skip test_cuda.kernels_compile: sanitizers are for the native build"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
if out=$(make -s CUDA=1 SAN= SMS="${SMS:-90}" B=build/cuda-check cuda 2>&1); then
    echo "ok   test_cuda.kernels_compile"
    echo "1 passed, 0 failed, 0 skipped"
else
    older=$(printf '%s\n' "$out" | sed -n 's/^Makefile:[0-9]*: \*\*\* \(CUDA=1 needs nvcc of CUDA 13: .* is of CUDA [0-9][0-9.]*\)\.  Stop\.$/\1/p')
    if [ -n "$older" ]; then
        echo "skip test_cuda.kernels_compile: $older"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    printf '%s\n' "$out"
    echo "FAIL test_cuda.kernels_compile"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
