# make            the program ./lathe and build/<config>/liblathe.a
# make check      every test that needs no GPU; SAN=address,undefined or SAN=thread instruments it
# make demo       installs what is missing, builds, asks the shipped model a question
# make help       the rest

SAN      ?=
DEBUG    ?=
CUDA     ?=
CROSS    ?=
CC       := $(CROSS)$(if $(filter default,$(origin CC)),gcc,$(CC))
MACHINE  := $(shell $(CC) -dumpmachine 2>/dev/null)
ARCH     := $(firstword $(subst -, ,$(MACHINE)))
comma    := ,
space    := $(subst ,, )
CONFIG   := $(ARCH)$(if $(CUDA),-cuda$(if $(filter command line,$(origin SMS)),-$(subst $(space),-,$(strip $(SMS)))))$(if $(DEBUG),-debug)$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(FUZZ),-fuzz)
B        := build/$(CONFIG)

WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wwrite-strings -Wcast-qual -Wvla -Wundef -Wformat=2 $(if $(CI),-Werror)
CPPFLAGS += -Iinclude -Isrc -D_POSIX_C_SOURCE=200809L $(if $(DEBUG),-DLATHE_DEBUG)
CFLAGS   += -std=c11 -O2 -g -ffp-contract=off -fno-math-errno -pthread $(WARN) \
            $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer $(if $(findstring undefined,$(SAN)),-fno-sanitize-recover=undefined)) \
            $(if $(FUZZ),-fsanitize=fuzzer-no-link)
LDFLAGS  += -pthread $(if $(SAN),-fsanitize=$(SAN))
LDLIBS   := -ljansson -lpcre2-8 -lutf8proc -lcrypto -lm
DEPFLAGS = -MMD -MP

# make CUDA=1: the GPU backend, for these compute capabilities. 9.0 and 12.x are built with the instructions that only they have
# (90a, 120a).
CUDA_HOME ?= /usr/local/cuda
NVCC     ?= $(CUDA_HOME)/bin/nvcc
SMS      ?= 80 86 89 90 120a
CODES    := $(patsubst 121,121a,$(patsubst 120,120a,$(patsubst 90,90a,$(SMS))))
NVCCFLAGS = -std=c++17 -O3 -lineinfo -ccbin g++ --fmad=true -Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wno-unknown-pragmas \
            $(foreach s,$(CODES),-gencode=arch=compute_$(s),code=sm_$(s))
ifneq ($(CUDA),)
TOOLKIT  := $(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')
ifeq ($(TOOLKIT),)
$(error CUDA=1 needs nvcc of CUDA 13: there is no $(NVCC); CUDA_HOME or NVCC says where it is)
else ifneq ($(filter 1 2 3 4 5 6 7 8 9 10 11 12,$(basename $(TOOLKIT))),)
$(error CUDA=1 needs nvcc of CUDA 13: $(NVCC) is of CUDA $(TOOLKIT))
endif
ifneq ($(filter 120 121,$(SMS)),)
$(info note: $(filter 120 121,$(SMS)) is built as $(filter 120a 121a,$(CODES)))
endif
CPPFLAGS += -DLATHE_CUDA -DLATHE_CUDA_SMS='"$(CODES)"' -isystem $(CUDA_HOME)/include
LDLIBS   += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
endif

UNITS    := base tensor container quant op op/ref op/cpu $(if $(CUDA),op/cuda) cache model text sample spec engine
# A cross build is for the kernels and their tests: it needs no library of the other machine.
ifneq ($(CROSS),)
UNITS    := base tensor quant op op/ref op/cpu
SKIP     := src/base/json%
endif
X86_ONLY := %_avx2.c %_avx512.c %_avx512bf16.c
ARM_ONLY := %_neon.c
FOREIGN  := $(if $(filter x86_64,$(ARCH)),$(ARM_ONLY),$(X86_ONLY) $(if $(filter aarch64,$(ARCH)),,$(ARM_ONLY)))
sources   = $(filter-out $(FOREIGN) $(SKIP),$(wildcard $(1)/*.c))
SRC      := $(foreach u,$(UNITS),$(call sources,src/$u))
OBJ      := $(SRC:%.c=$B/%.o) $(if $(CUDA),$(patsubst %.cu,$B/%.cu.o,$(wildcard src/op/cuda/*.cu)))
BASE_OBJ := $(filter $B/src/base/%,$(OBJ))
CLI_OBJ  := $(patsubst %.c,$B/%.o,$(wildcard cli/*.c))
SERVER_OBJ := $(patsubst %.c,$B/%.o,$(wildcard server/*.c server/dialect/*.c))
TEST_SRC := $(wildcard tests/unit/test_*.c tests/text/test_*.c tests/op/test_*.c tests/model/test_*.c $(if $(CROSS),,tests/server/test_*.c))
TESTS    := $(TEST_SRC:tests/%.c=$B/tests/%)
# Tests of the built program and of other tools: they end in the same closing line.
TEST_SCRIPTS := $(wildcard tests/*/test_*.sh)
# What test programs share; tests/test.c is their main, tests/fail_alloc.c is linked on request.
TEST_LIB := $(filter-out $(TEST_SRC) tests/test.c tests/fail_alloc.c,$(wildcard $(if $(CROSS),,tests/*.c tests/model/*.c) tests/op/*.c))
BENCHES  := $B/bench/op $B/bench/engine $B/bench/spec $B/bench/load $B/bench/server_cost $(if $(CUDA),$B/bench/profile $B/bench/gpu_linear $B/bench/gpu_delta)
GROW_OBJ := $(patsubst %.c,$B/%.o,$(wildcard tools/grow*.c))
BENCH_OBJ := $(patsubst %.c,$B/%.o,$(filter-out $(BENCHES:$B/%=%.c) bench/profile.c bench/gpu_linear.c bench/gpu_delta.c,$(call sources,bench)))

# Targets for clang's libFuzzer and what of the library they may use, built apart in FUZZ_B.
FUZZ_B   ?= build/$(ARCH)-fuzz
FUZZERS  := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_OBJ := $(foreach u,base tensor container quant text,$(filter $B/src/$u/%,$(OBJ))) $(addprefix $B/src/,model/config.o model/fields.o model/rotary.o spec/dflash_config.o engine/names.o) $(filter-out $B/server/http.o,$(SERVER_OBJ))
FUZZ_ARG := FUZZ=1 CC=clang SAN=address,undefined B=$(FUZZ_B)

# A file's suffix gives its instruction set; nothing is compiled for the build machine's processor.
$B/%_avx2.o:       CFLAGS += -mavx2 -mfma -mf16c
$B/%_avx512.o:     CFLAGS += -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
$B/%_avx512bf16.o: CFLAGS += -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq \
                             -mavx512vbmi -mavx512bf16
# Sizes from outside come through these units.
$B/src/base/%.o $B/src/container/%.o $B/src/text/%.o $B/server/%.o: CFLAGS += -Wconversion

# The runs of check-spec, which -j does side by side: drafters, and of each eight shares of the prompts.
SPEC_RUNS := $(foreach d,ngram mtp dflash2 mtp_ngram dflash2_ngram,$(addprefix check-spec-$d-,1 2 3 4 5 6 7 8))

.PHONY: FORCE gpu-tests all check check-spec $(SPEC_RUNS) cuda op-tests neon-check demo clients help clean bench grow format layers deps fuzz fuzz-check soak
.SECONDARY:
all: lathe

# Of the build that is asked for, whichever was made last.
lathe: $B/lathe FORCE
	@cmp -s $< $@ || cp -f $< $@
FORCE:

# Programs whose allocations can be made to fail: tests/fail_alloc.h.
ALLOC_TESTS := unit/test_json unit/test_safetensors model/test_no_alloc model/test_dflash_memory model/test_checkpoint text/test_tokenizer text/test_text_api text/test_parse text/test_values unit/test_sample text/test_render text/test_replay text/test_template model/test_combine
$(ALLOC_TESTS:%=$B/tests/%): $B/tests/fail_alloc.o
$(ALLOC_TESTS:%=$B/tests/%): TEST_LDFLAGS := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc

# The library exports lathe_* only: its objects are linked into one and the other names made local.
$B/liblathe.a: $(OBJ)
	$(CROSS)ld -r -o $B/liblathe.o $^
	$(CROSS)objcopy --wildcard --keep-global-symbol='lathe_*' $B/liblathe.o
	@rm -f $@
	$(CROSS)ar rcs $@ $B/liblathe.o
# The same objects with every name, for tests and benchmarks.
$B/libcore.a: $(OBJ)
	@rm -f $@
	$(CROSS)ar rcs $@ $^

# src/base once more, for the program: an archive, so that what the library exports is taken from it.
$B/libbase.a: $(BASE_OBJ)
	@rm -f $@
	$(CROSS)ar rcs $@ $^
$B/lathe: $(CLI_OBJ) $(SERVER_OBJ) $B/liblathe.a $B/libbase.a
	$(CC) $(LDFLAGS) -o $@ $^ -ledit -lmicrohttpd -lgnutls -lzstd $(LDLIBS)
$B/libtest.a: $(TEST_LIB:%.c=$B/%.o)
	@rm -f $@
	$(CROSS)ar rcs $@ $^
$B/tests/%: $B/tests/%.o $B/tests/test.o $B/libtest.a $B/libcore.a
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $B/libtest.a $B/libcore.a $(if $(CROSS),-lm,$(LDLIBS)) $(TEST_LDFLAGS)
# The operators' and the model's tests in one program, to be carried to a machine with a GPU.
$B/gpu-tests: $(patsubst %.c,$B/%.o,$(filter-out $(ALLOC_TESTS:%=tests/%.c),$(wildcard tests/op/test_*.c tests/model/test_*.c))) $B/tests/test.o $B/libtest.a $B/libcore.a $B/tools/grow
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $B/libtest.a $B/libcore.a $(LDLIBS)
# What the server's tests link.
$B/libserver.a: $(SERVER_OBJ)
	@rm -f $@
	$(CROSS)ar rcs $@ $^
$B/tests/server/%: $B/tests/server/%.o $B/tests/test.o $B/libserver.a $B/libtest.a $B/libcore.a
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $B/libserver.a $B/libtest.a $B/libcore.a -lmicrohttpd -lgnutls -lzstd $(LDLIBS) $(TEST_LDFLAGS)
# Over the fake engine, which comes before the library's.
FAKE_TESTS := $(addprefix $B/tests/server/,test_dialects test_failures test_operations test_thinking test_replay test_requests test_cuts test_responses test_unsupported test_hints test_spellings test_cost test_limits)
$(FAKE_TESTS): $B/tests/server/fake_engine.o $B/tests/server/rig.o
# What it counts.
WRAPPED := send sendmsg write sem_clockwait sem_post poll recv read nanosleep pthread_cond_signal pthread_cond_broadcast pthread_cond_wait MHD_queue_response MHD_suspend_connection MHD_resume_connection malloc calloc realloc
$B/tests/server/test_cost: TEST_LDFLAGS := $(WRAPPED:%=-Wl,--wrap=%)
$B/tests/server/scripted_server: $B/tests/server/scripted_server.o $B/tests/server/fake_engine.o $B/libserver.a $B/libcore.a
	$(CC) $(LDFLAGS) -o $@ $^ -lmicrohttpd -lgnutls -lzstd $(LDLIBS)
# `lathe serve` over a device that fails when a test wants it.
$B/tests/server/failing_lathe: $B/tests/server/failing_lathe.o $(filter-out $B/cli/main.o,$(CLI_OBJ)) $B/libserver.a $B/libcore.a
	$(CC) $(LDFLAGS) -o $@ $^ -Wl,--wrap=lathe_engine_open,--wrap=lathe_engine_close -ledit -lmicrohttpd -lgnutls -lzstd $(LDLIBS)
$B/libfuzz.a: $(FUZZ_OBJ)
	@rm -f $@
	$(CROSS)ar rcs $@ $^
$B/tests/fuzz/%: $B/tests/fuzz/%.o $B/libtest.a $B/libfuzz.a
	$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $B/libtest.a $B/libfuzz.a -lzstd $(LDLIBS)
# Whole requests, over the fake engine.
$B/tests/fuzz/fuzz_request: $B/tests/server/fake_engine.o
$B/tests/fuzz/fuzz_request: LDLIBS += -lmicrohttpd -lgnutls
$B/libbench.a: $(BENCH_OBJ)
	@rm -f $@
	$(CROSS)ar rcs $@ $^
$B/bench/%: $B/bench/%.o $B/libbench.a $B/libcore.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
# What the server costs, in one process with it.
$B/bench/server_cost: $B/bench/server_cost.o $B/bench/client.o $B/libserver.a $B/liblathe.a $B/libbase.a
	$(CC) $(LDFLAGS) -o $@ $^ -lmicrohttpd -lgnutls -lzstd $(LDLIBS)
$B/bench/%.o: CPPFLAGS += -I.
$B/tools/grow: $(GROW_OBJ) $B/libcore.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$B/tests/model/test_grow: $B/tools/grow
$B/tests/%.o: CPPFLAGS += -Itests
$B/tests/server/%.o $B/tests/fuzz/%.o: CPPFLAGS += -I. -Iserver
$B/cli/%.o: CPPFLAGS += -I.
$B/server/%.o: CPPFLAGS += -Iserver
$B/server/page.o: $(wildcard server/page/*)

# The commit of the source, for one file alone.
REVISION := $(or $(if $(wildcard .git),$(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null)),unknown)
$B/revision: FORCE
	@mkdir -p $(@D)
	@echo '$(REVISION)' | cmp -s - $@ || echo '$(REVISION)' >$@
$B/cli/revision.o: $B/revision
$B/cli/revision.o: CPPFLAGS += -DLATHE_REVISION='"$(REVISION)"'

$B/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(DEPFLAGS) -c -o $@ $<

$B/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(CPPFLAGS) $(NVCCFLAGS) -MMD -MP -c -o $@ $<

# Public implementations that tests compare with; their tests are skipped where npm is missing.
build/npm/installed: tests/oracle/package.json tests/oracle/package-lock.json
	@sh tests/oracle/install.sh build/npm

check: $(TESTS) $B/lathe $B/bench/load $B/tests/server/scripted_server $B/tests/server/failing_lathe layers build/npm/installed
	@LATHE=$B/lathe SCRIPTED_SERVER=$B/tests/server/scripted_server FAILING_LATHE=$B/tests/server/failing_lathe sh tests/run.sh $(TESTS) $(TEST_SCRIPTS)

# Speculation against plain decoding on all 500 prompts, every K, one and two threads: an hour with -j2.
check-spec: $(SPEC_RUNS)
$(SPEC_RUNS): $B/tests/model/test_spec
	LATHE_FULL=$(lastword $(subst -, ,$@))/8 $< $(word 3,$(subst -, ,$@))_equals_plain

# 200 clients for five minutes.
soak: $B/lathe
	@LATHE=$B/lathe SOAK_SECONDS=300 sh tests/server/test_soak.sh

fuzz:
	@$(MAKE) --no-print-directory $(FUZZ_ARG) $(FUZZERS:%=$(FUZZ_B)/tests/fuzz/fuzz_%)
fuzz-check:
	@FUZZ_B=$(FUZZ_B) sh tests/fuzz/test_fuzz.sh
fuzz-%:
	@$(MAKE) --no-print-directory $(FUZZ_ARG) $(FUZZ_B)/tests/fuzz/fuzz_$*

demo:
	@sh tools/deps.sh build
	@echo "Building ..."
	@$(MAKE) --no-print-directory --silent -j$$(nproc) all
	@sh tools/demo.sh

deps:
	@sh tools/deps.sh build check

clients:
	@sh tests/server/clients/install.sh

help:
	@echo 'make              ./lathe, and build/<config>/liblathe.a'
	@echo 'make demo         installs what is missing, builds, and lets the shipped model answer'
	@echo 'make check        every test that needs no GPU; ends in N passed, N failed, N skipped'
	@echo 'make SAN=address,undefined check    the same, instrumented; also SAN=thread'
	@echo 'make DEBUG=1 ...  debug builds: every commit of a round is checked against decoding'
	@echo 'make check-spec   speculation against plain decoding on 500 prompts; takes long'
	@echo 'make fuzz         the fuzz targets; make fuzz-check runs them, each FUZZ_SECONDS=10'
	@echo 'make soak         200 clients of the server that come and go at random, for five minutes'
	@echo 'make bench        build/<config>/bench/op, engine, spec, load, server_cost: speed, and what it costs'
	@echo 'make grow         build/<config>/tools/grow: models/nano in the shape of the 27B'
	@echo 'make deps         installs the Debian packages that make check needs'
	@echo 'make clients      installs the npm clients of the server'\''s tests (800 MB), else skipped'
	@echo 'make layers       who includes whom, against tests/layers.txt'
	@echo 'make format       clang-format over the tree'
	@echo 'make CUDA=1       with the GPU backend (SMS="90" for one capability); target cuda: its kernels;'
	@echo '                  gpu-tests: operators and model tested on a GPU; bench: profile, gpu_linear, gpu_delta too'
	@echo 'make clean        removes build/ and ./lathe'
	@echo 'CC=clang, CROSS=aarch64-linux-gnu-, CI=1 (warnings are errors), B=DIR (where to build)'

bench: $(BENCHES)
grow: $B/tools/grow

# On a machine with a GPU: build/<config>/gpu-tests [TEST...]
gpu-tests: $B/gpu-tests

# The GPU's side alone: make CUDA=1 cuda compiles it for every compute capability of SMS.
cuda: $(filter $B/src/op/cuda/%,$(OBJ))

# The operators' tests; for ARM they run under an emulator.
op-tests: $(filter $B/tests/op/%,$(TESTS))
neon-check:
	@sh tests/op/test_neon.sh

layers:
	@sh tests/layers.sh

format:
	clang-format -i $$(git ls-files '*.[ch]' '*.cu' '*.cuh')

clean:
	rm -rf build lathe

-include $(shell find $B -name '*.d' 2>/dev/null)
