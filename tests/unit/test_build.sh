#!/bin/sh
# What make does with a toolkit, or without one: case B104. The compilers are stand-ins that say which release they are.
# Toolkits before CUDA 13 are refused: the case's rows that would have them build are skipped.
unset MAKEFLAGS MFLAGS MAKELEVEL CUDA SMS SAN NVCC CUDA_HOME CC B
cd "$(dirname "$0")/../.." || exit 1
T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
passed=0 failed=0 skipped=0
out=$T/out

toolkit() {
    mkdir -p "$T/cuda-$1/bin"
    printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.88"\n' "$1" "$1" >"$T/cuda-$1/bin/nvcc"
    chmod +x "$T/cuda-$1/bin/nvcc"
}
# plan WORD...: what make would run.
plan() {
    make -n B="$T/none" "$@" >"$out" 2>&1
}
# it NAME STATUS-IS-FINE: one line of the report. $why says what is wrong.
it() {
    if [ -z "$why" ]; then
        echo "ok   test_build.$1"
        passed=$((passed + 1))
    else
        echo "FAIL test_build.$1: $why: $(head -c 300 "$out")"
        failed=$((failed + 1))
    fi
    why=
}
refused() {
    plan CUDA=1 "$@" cuda && why="it builds"
    [ "$(wc -l <"$out")" -eq 1 ] || why="more than a line"
}
for release in 11.8 12.4 12.8 12.9 13.0 13.1 14.0; do
    toolkit $release
done
why=

refused CUDA_HOME="$T/nothing"
grep -q "there is no $T/nothing/bin/nvcc" "$out" || why="it does not say what is missing"
it B104_no_toolkit
for release in 11.8 12.4 12.8 12.9; do
    refused CUDA_HOME="$T/cuda-$release"
    grep -q "CUDA 13: .* is of CUDA $release" "$out" || why="it does not say which is needed and which it is"
    it "B104_toolkit_$release"
done
# The test that compiles the kernels is skipped with such a toolkit.
NVCC="$T/cuda-12.4/bin/nvcc" sh tests/op/test_cuda.sh >"$out" 2>&1 || why="it fails"
grep -qx "skip test_cuda.kernels_compile: CUDA=1 needs nvcc of CUDA 13: $T/cuda-12.4/bin/nvcc is of CUDA 12.4" "$out" ||
    why="it does not skip in make's words"
grep -qx "0 passed, 0 failed, 1 skipped" "$out" || why="another count"
it B104_kernels_of_an_older_toolkit
for row in 12.4_80_90 12.8_120a 12.8_120; do
    echo "skip test_build.B104_$row: issue 4 has CUDA 13, and no older toolkit is taken"
    skipped=$((skipped + 1))
done
for release in 13.0 13.1 14.0; do
    plan CUDA=1 CUDA_HOME="$T/cuda-$release" cuda || why="it does not build"
    for code in 80,code=sm_80 90a,code=sm_90a 120a,code=sm_120a; do
        grep -q -e "-gencode=arch=compute_$code" "$out" || why="no code for $code"
    done
    it "B104_toolkit_$release"
done
plan CUDA=1 CUDA_HOME="$T/cuda-13.0" SMS="80 90a 120a 121a" cuda || why="it does not build"
grep -q -e "-gencode=arch=compute_121a,code=sm_121a" "$out" || why="no code for 121a"
grep -q '^note' "$out" && why="a note"
it B104_what_is_asked_for
plan CUDA=1 CUDA_HOME="$T/cuda-13.0" SMS="90 120" cuda || why="it does not build"
grep -q '^note: 120 is built as 120a' "$out" || why="no note"
grep -q -e 'sm_120[^a]' "$out" && why="code for 120"
grep -q -e 'sm_90[^a]' "$out" && why="code for 90"
it B104_upgraded
plan lathe || why="it does not build"
grep -q -e '-march\|nvcc\|LATHE_CUDA' "$out" && why="the build machine's processor, or CUDA"
it B104_for_any_machine
plan -j1 lathe && sort "$out" >"$T/one"
plan -j64 lathe && sort "$out" >"$T/many"
cmp -s "$T/one" "$T/many" && [ -s "$T/one" ] || why="other commands"
it B104_jobs
# A copy of what two programs need.
mkdir "$T/a b" && cp -R Makefile include src cli server tests "$T/a b" && cp -R bench tools "$T/a b"
(cd "$T/a b" && make -j2 B=build/x build/x/libbase.a && make -n B=build/x lathe) >"$out" 2>&1 || why="it does not build"
it B104_path_with_spaces
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
