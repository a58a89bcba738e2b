#!/bin/sh
# The program from outside: command lines, exit codes, messages, and answers of the shipped model.
# $LATHE is the program (./lathe); arguments name the tests to run, none means all.
cd "$(dirname "$0")/../.." || exit 1
L=${LATHE:-./lathe}
M=models/nano
KILN="A kiln is a furnace for firing or burning or drying such things as porcelain or bricks."
T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
passed=0 failed=0 skipped=0
only=" $* "

# ---- Harness ---------------------------------------------------------------------------------

# run ARGS...: the program's status in $rc, its outputs in $T/out and $T/err.
run() {
    "$L" "$@" >"$T/out" 2>"$T/err" </dev/null
    rc=$?
}
bad() {
    why="$why
  $*"
}
code() {
    [ "$rc" -eq "$1" ] || bad "status $rc, expected $1: $(head -c 300 "$T/err")"
}
out_is() {
    [ "$(cat "$T/out")" = "$1" ] || bad "standard output is \"$(head -c 300 "$T/out")\", expected \"$1\""
}
out_has() {
    grep -qF -- "$1" "$T/out" || bad "\"$1\" is not in standard output: $(head -c 300 "$T/out")"
}
err_has() {
    grep -qF -- "$1" "$T/err" || bad "\"$1\" is not in standard error: $(head -c 300 "$T/err")"
}
err_empty() {
    [ ! -s "$T/err" ] || bad "standard error has: $(head -c 300 "$T/err")"
}
one_line_error() {
    [ "$(wc -l <"$T/err")" -eq 1 ] || bad "standard error has $(wc -l <"$T/err") lines, expected 1"
    err_has "lathe"
}
skip() {
    skip_why=$*
}

# it NAME: runs the function t_NAME.
it() {
    [ "$only" = "  " ] || case $only in *" $1 "*) ;; *) return ;; esac
    why= skip_why=
    "t_$1"
    if [ -n "$skip_why" ]; then
        echo "skip test_cli.$1: $skip_why"
        skipped=$((skipped + 1))
    elif [ -n "$why" ]; then
        echo "FAIL test_cli.$1:$why"
        failed=$((failed + 1))
    else
        echo "ok   test_cli.$1"
        passed=$((passed + 1))
    fi
}

# ---- Command lines ---------------------------------------------------------------------------

t_help_fits_a_screen() {
    for c in "" run chat perplexity tokenize template inspect serve; do
        # shellcheck disable=SC2086
        run $c --help
        code 0
        err_empty
        most=24
        [ "$c" != serve ] || most=72 # a server is started by a script
        [ "$(wc -l <"$T/out")" -le $most ] || bad "$c --help has $(wc -l <"$T/out") lines"
        [ "$(wc -L <"$T/out")" -le 80 ] || bad "$c --help has a line of $(wc -L <"$T/out") columns"
    done
}

t_help_names_every_option() {
    for c in run chat perplexity tokenize template inspect serve; do
        run $c --help
        # Options of the command's own file, and of the groups in args.c that it adds.
        for group in "$c" $(grep -oE '(engine|spec|round|sampling|think)_args_add\(o' "cli/$c.c" | sed 's/_.*//'); do
            case $group in
            engine | spec | round | sampling | think)
                sed -n "/^void ${group}_args_add/,/^}/p" cli/args.c ;;
            *) cat "cli/$c.c" ;;
            esac
        done | grep -oE 'option_[a-z]+\(o, "--[a-z-]+"' | grep -oE -- '--[a-z-]+' | sort -u >"$T/names"
        [ -s "$T/names" ] || bad "no options found for $c"
        while read -r name; do
            [ "$c $name" = "inspect --model" ] || out_has "$name"
        done <"$T/names"
    done
}

# The words of help are those that are accepted: one more is refused with the same list.
t_help_lists_the_words() {
    isa="generic|avx2|avx512|avx512bf16|neon|best"
    for c in run chat perplexity inspect; do
        run $c --help
        out_has "--isa $isa"
        out_has "--device auto|cpu|cuda"
        usage "--device is \"abacus\", expected auto|cpu|cuda" $c --device abacus
        usage "--isa is \"mmx\", expected $isa" $c --isa mmx
        [ $c = perplexity ] && continue
        run $c --help
        out_has "--spec auto|none|ngram|mtp|mtp+ngram|dflash2|dflash2+ngram"
    done
    for spec in auto none ngram mtp mtp+ngram dflash2 dflash2+ngram; do
        run inspect $M --spec $spec
        code 0
    done
    run inspect $M --spec mtq
    code 2
    err_has "dflash2+ngram"
    usage "the nearest of auto|none|ngram|mtp|mtp+ngram|dflash2|dflash2+ngram is mtp" run -m $M -p x --spec mpt
    run inspect $M --isa sse9
    code 2
}

t_version_and_no_arguments() {
    run --version
    code 0
    out_has "lathe "
    run
    code 2
    err_has "lathe run"
    run help
    code 0
}

# usage EXPECTED ARGS...: status 2, one line that has EXPECTED, nothing on standard output.
usage() {
    want=$1
    shift
    run "$@"
    code 2
    err_has "$want"
    one_line_error
    [ ! -s "$T/out" ] || bad "standard output is not empty for: $*"
}

t_bad_names_get_the_nearest() {
    usage "there is no command rnu; the nearest is run" rnu
    usage "there is no command perplexty; the nearest is perplexity" perplexty
    usage "there is no command frobnicate (lathe --help" frobnicate
    usage "there is no option --temprature; the nearest is --temp" run --temprature 1
    usage "there is no option --no-thnik; the nearest is --no-think" run --no-thnik
    usage "there is no option --prmopt; the nearest is --prompt" run --prmopt=x
    usage "there is no option --frequency; the nearest is --frequency-penalty" run --frequency 1
    usage "there is no option -q (" run -q
    usage "there is no option --zzzzzzzz (" run --zzzzzzzz
    usage "the nearest of bf16|fp8|f32 is bf16" run -m $M -p x --kv bf61
    usage "--kv is \"int4\", expected bf16|fp8|f32" inspect $M --kv int4
    usage "--prefill-math is \"int8\", expected bf16|fp8|nvfp4" perplexity -m $M -f x --prefill-math int8
    usage "--stats is \"xml\", expected json|text" run -m $M -p x --stats xml
    usage "there is no option --tensor; the nearest is --tensors" inspect $M --tensor
    usage "there is no option --chunks; the nearest is --chunk" perplexity --chunks 5
}

t_values_are_checked() {
    usage "--top-p is 1.5, expected 0 to 1" run -m $M -p x --top-p 1.5
    usage "--top-p is \"x\", expected a number" run -m $M -p x --top-p x
    usage "--temp is -1, expected 0 to 100" run -m $M -p x --temp -1
    usage "--temp is nan, expected 0 to 100" run -m $M -p x --temp nan
    usage "--top-k is -2, expected -1 or more" run -m $M -p x --top-k -2
    usage "-n is 99999999999, expected -1 to 2147483647" run -m $M -p x -n 99999999999
    usage "--presence-penalty is 3, expected -2 to 2" run -m $M -p x --presence-penalty 3
    usage "--frequency-penalty is -3, expected -2 to 2" run -m $M -p x --frequency-penalty=-3
    usage "--repetition-penalty is 0, expected 0.01 to 100" run -m $M -p x --repetition-penalty 0
    usage "--seed is \"1.5\", expected a whole number" run -m $M -p x --seed 1.5
    usage "--seed is 99999999999999999999, expected -1 to 9223372036854775807 (" \
        run -m $M -p x --seed 99999999999999999999
    usage "--seed is -2, expected -1 or more" run -m $M -p x --seed -2
    usage "--max-tokens is 0" run -m $M -p x -n 0
    usage "-n is -2, expected" run -m $M -p x -n -2
    usage "--draft-k is 0, expected 1 or more" run -m $M -p x --draft-k 0
    usage "--threads is 0, expected 1 to 256" run -m $M -p x --threads 0
    usage "--ctx is 1, expected 2 to" run -m $M -p x --ctx 1
    usage "-c is 1, expected 2 to" run -m $M -p x -c 1
    usage "--logprobs is 21, expected 0 to 20" run -m $M -p x --logprobs 21
    usage "--logit-bias is \"5\", expected ID=BIAS" run -m $M -p x --logit-bias 5
    usage "--logit-bias is \"3=1,5=101,4=1\"" run -m $M -p x --logit-bias 3=1,5=101,4=1
    err_has "\"5=101\" is none"
    usage "--logit-bias is \"5=1,\", expected ID=BIAS" run -m $M -p x --logit-bias 5=1,
    usage "--logit-bias is \",5=1\"" run -m $M -p x --logit-bias ,5=1
    usage "--logit-bias is \"\"" run -m $M -p x --logit-bias ""
    usage "-m is empty, expected a path" run -m "" -p x
    usage "--messages is empty" run -m $M --messages=
    usage "DIR is empty" inspect ""
    usage "-f is empty" tokenize -m $M -f ""
    usage "--chunk is 1, expected 2 to" perplexity -m $M -f x --chunk 1
}

t_contradictions_are_named() {
    usage "a model is needed: -m DIR" run -p x
    usage "a prompt is needed" run -m $M
    usage "-p needs a value" run -m $M -p
    usage "--prompt needs a value, but --greedy follows" run -m $M -p --greedy
    usage "--greedy is --temp 0" run -m $M -p x --greedy --temp 1
    usage "contradict each other" run -m $M -p x --think --no-think
    usage "contradict each other" run -m $M -p x --no-think --effort high
    usage "contradict each other" run -m $M -p x --think --effort none
    usage "needs --think-budget" run -m $M -p x --budget-message y
    usage "cannot go with it" run -m $M -p x --raw --think-budget 4
    usage "</think> follows it" serve -m $M --budget-message "x</think>"
    usage "--raw has no conversation" run -m $M -p x --raw --system s
    usage "--raw has no template" run -m $M -p x --raw --no-think
    usage "cannot both read standard input" run -m $M -p - --messages -
    usage "--logprobs-file needs --logprobs" run -m $M -p x --logprobs-file "$T/l"
    usage "\"y\" is no option" run -m $M -p x y
    usage "a text is needed: -f FILE" perplexity -m $M
    usage "one text is needed" tokenize -m $M
    usage "exclude each other" tokenize -m $M -p x --ids --count
    usage "a conversation is needed" template -m $M
    usage "a model directory is needed" inspect
    usage "is one DIR too many" inspect $M $M
    usage "--greedy takes no value" run -m $M -p x --greedy=1
    usage "--spec none has no drafter: --draft-model cannot" run -m $M -p x --spec none --draft-model d
    usage "--spec none has no drafter: --draft-k cannot" chat -m $M --draft-k 3 --spec none
    usage "--spec none has no drafter: --fixed-k cannot" run -m $M -p x --spec none --fixed-k
    usage "--spec none has no drafter: --rejection cannot" run -m $M -p x --spec none --rejection
    usage "--spec none has no drafter: --draft-k cannot" inspect $M --spec none --draft-k 2
    usage "--decode knows every id: --control cannot" tokenize -m $M -p 1 --decode --control
}

# ---- Bad input -------------------------------------------------------------------------------

# refused EXPECTED ARGS...: status 1, one line that has EXPECTED, nothing on standard output.
refused() {
    want=$1
    shift
    run "$@"
    code 1
    err_has "$want"
    one_line_error
    [ ! -s "$T/out" ] || bad "standard output is not empty for: $*"
}

t_bad_files_are_named() {
    refused "$T/none" run -m "$T/none" -p x
    refused "$T/none" chat -m "$T/none"
    refused "$T/none" tokenize -m "$T/none" -p x
    refused "$T/none" inspect "$T/none"
    refused "$T/none" perplexity -m $M -f "$T/none"
    refused "$T/none" run -m $M --messages "$T/none"
    printf '[{"role": "user", "content": "x"' >"$T/cut.json"
    refused "$T/cut.json" run -m $M --messages "$T/cut.json"
    err_has "line 1"
    printf '{"x": 1}' >"$T/object.json"
    refused "expected an array of messages" template -m $M --messages "$T/object.json"
    printf '{"x": 1}' >"$T/tools.json"
    refused "expected an array of tools" run -m $M -p x --tools "$T/tools.json"
    printf '{"messages": [{"role": "user", "content": "a"}], "tools": 5}' >"$T/five.json"
    refused "five.json: tools: expected an array" template -m $M --messages "$T/five.json"
    : >"$T/empty"
    refused "0 tokens, expected 2 or more" perplexity -m $M -f "$T/empty"
    printf x >"$T/one"
    refused "1 token, expected 2 or more" perplexity -m $M -f "$T/one"
    refused "one/l" run -m $M -p x --logprobs 1 --logprobs-file "$T/no/one/l"
}

# A pipe in place of a file.
t_pipes_are_files() {
    mkfifo "$T/pipe"
    printf 'What is a kiln?' >"$T/pipe" &
    run tokenize -m $M -f "$T/pipe" --count
    code 0
    wait
    printf '[{"role": "user", "content": "a"}]' >"$T/pipe" &
    run template -m $M --messages "$T/pipe"
    code 0
    out_has "<|im_start|>user"
    wait
}

t_bad_text_is_named() {
    printf 'abc\377def' >"$T/bytes"
    refused "$T/bytes" perplexity -m $M -f "$T/bytes"
    usage "-p: byte 3 of 4, 0xFF, is no valid UTF-8" run -m $M -p "$(printf 'abc\377')"
    usage "--system: byte 0 of 1" chat -m $M --system "$(printf '\377')"
    usage "--stop: byte 0 of 1" run -m $M -p x --stop "$(printf '\377')"
    usage "-p: byte 0 of 1" tokenize -m $M -p "$(printf '\377')"
    refused "byte 3" tokenize -m $M -f "$T/bytes"
    printf '[{"role": "wizard", "content": "x"}]' >"$T/role.json"
    run template -m $M --messages "$T/role.json"
    [ "$rc" -ne 0 ] || bad "an unknown role was rendered"
    one_line_error
    run template -m $M -p x --kwargs '{"a": '
    [ "$rc" -ne 0 ] || bad "broken kwargs were accepted"
    one_line_error
}

# Status 2 is for what the command line says, 1 for what is in the files it names.
t_status_tells_whose_fault_it_is() {
    # shellcheck disable=SC2046
    usage "40 stop strings, at most 32" run -m $M -p x $(printf -- '--stop a%d ' $(seq 40))
    usage "stop[0] has 0 bytes" run -m $M -p x --stop ""
    usage "expected 2 to 16777216" run -m $M -p x --ctx 99999999
    usage "n_ctx) is 9999999" run -m $M -p x --ctx 9999999
    usage "--kwargs: byte 1 (line 1, column 2): the text ends" template -m $M -p x --kwargs '{'
    usage '--kwargs is "[]", expected a JSON object' template -m $M -p x --kwargs '[]'
    usage "kwargs: unknown key 'a'" template -m $M -p x --kwargs '{"a": 1}'
    usage "kwargs.enable_thinking" template -m $M -p x --kwargs '{"enable_thinking": 1}'
    usage "the window is 64, expected 2 to the context, 32" perplexity -m $M -f README.md --chunk 64 --ctx 32
    usage "no token has the id 99999" tokenize -m $M -p 99999 --decode
    echo 99999 >"$T/ids"
    refused "no token has the id 99999" tokenize -m $M -f "$T/ids" --decode
    printf '[{"role": "wizard", "content": "x"}]' >"$T/role.json"
    refused "messages[0].role" template -m $M --messages "$T/role.json"
    refused "messages[0].role" template -m $M --messages "$T/role.json" --kwargs '{"enable_thinking": true}'
    usage "kwargs: unknown key 'a'" template -m $M --messages "$T/role.json" --kwargs '{"a": 1}'
    refused "messages[0].role" run -m $M --messages "$T/role.json"
    usage "stop[0] has 0 bytes" run -m $M --messages "$T/role.json" --stop ""
    printf '[{"role": "user", "content": "x"}]' >"$T/good.json"
    usage "stop[0] has 0 bytes" run -m $M --messages "$T/good.json" --stop ""
    printf '[{"name": "f"}, {"name": "f"}]' >"$T/twice.json"
    refused "tools[1].name: 'f' is the name of an earlier tool" run -m $M -p x --tools "$T/twice.json"
    refused "tools[1].name: 'f' is the name of an earlier tool" template -m $M -p x --tools "$T/twice.json"
}

t_images_are_refused() {
    printf '[{"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "a.png"}}]}]' >"$T/image.json"
    refused "messages[0].content[1]: image input needs the vision tower, which is not loaded" run -m $M --messages "$T/image.json"
    run template -m $M --messages "$T/image.json"
    code 0
    out_has "<|image_pad|>"
    echo "And now?" | "$L" chat -m $M --messages "$T/image.json" >"$T/out" 2>"$T/err"
    rc=$?
    code 1
    err_has "messages[0].content[1]: image input needs the vision tower, which is not loaded"
}

t_prompt_longer_than_the_context() {
    refused "context" run -m $M -p "What is a kiln? What is a kiln? What is a kiln?" --ctx 16
    grep -qE '[0-9]+ tokens' "$T/err" || bad "no number of tokens: $(cat "$T/err")"
    err_has 16
}

# damaged NAME: a copy of the model in $T/NAME whose first shard can be written.
damaged() {
    mkdir "$T/$1"
    for f in "$M"/*; do
        ln -s "$PWD/$f" "$T/$1/"
    done
    rm "$T/$1/model-00001-of-00002.safetensors"
    cp "$M/model-00001-of-00002.safetensors" "$T/$1/"
}

t_damaged_models_are_refused() {
    damaged cut
    truncate -s 1000000 "$T/cut/model-00001-of-00002.safetensors"
    refused "model-00001-of-00002.safetensors" run -m "$T/cut" -p x
    damaged header
    printf '\377\377\377\377\377\377\377\377' |
        dd of="$T/header/model-00001-of-00002.safetensors" conv=notrunc 2>/dev/null
    refused "model-00001-of-00002.safetensors" run -m "$T/header" -p x
    damaged nan
    head -c 65536 /dev/zero | tr '\0' '\377' |
        dd of="$T/nan/model-00001-of-00002.safetensors" bs=65536 seek=8 conv=notrunc 2>/dev/null
    refused "lm_head" run -m "$T/nan" -p x
    err_has "position"
    damaged config
    rm "$T/config/config.json"
    sed 's/"hidden_size": 320/"hidden_size": 321/' "$M/config.json" >"$T/config/config.json"
    run run -m "$T/config" -p x
    code 1
    one_line_error
}

# ---- Answers of the shipped model ------------------------------------------------------------

t_kiln() {
    run run -m $M -p "What is a kiln?" --no-think --greedy
    code 0
    out_is "$KILN"
    err_empty
}

t_kiln_in_other_ways() {
    printf 'What is a kiln?\n' | "$L" run -m $M -p - --no-think --greedy >"$T/out" 2>"$T/err"
    rc=$?
    code 0
    out_is "$KILN"
    printf '[{"role": "user", "content": "What is a kiln?"}]' >"$T/m.json"
    run run --model=$M --messages "$T/m.json" --effort none --temp 0 --threads 1 --pin
    out_is "$KILN"
    run run -m$M --messages=- --no-think --greedy
    [ "$rc" -ne 0 ] || bad "empty messages were answered"
    "$L" run -m $M --messages - --no-think --greedy <"$T/m.json" >"$T/out" 2>"$T/err"
    out_is "$KILN"
    printf '<|im_start|>user\nWhat is a kiln?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n\n' |
        "$L" run -m $M -p - --raw --top-k 1 >"$T/out" 2>"$T/err"
    out_is "$KILN"
    run run -m $M -p "What is a kiln?" --no-think --greedy --kv fp8
    out_is "$KILN"
    for isa in generic avx2 best; do
        run run -m $M -p "What is a kiln?" --no-think --greedy --isa $isa --kv f32 --activations f32
        [ "$isa" != avx2 ] || [ "$rc" -eq 0 ] || continue # not every processor has it
        out_is "$KILN"
    done
}

t_reasoning_goes_to_standard_error() {
    run run -m $M -p "What is 17 + 25?" --greedy --think
    code 0
    [ -s "$T/out" ] || bad "no answer"
    [ -s "$T/err" ] || bad "no reasoning"
    ! grep -q think "$T/out" || bad "a think marker in the answer"
}

t_think_budget() {
    # Closed at once, the answer is the one without thinking; closed later, after the message.
    run run -m $M -p "What is a kiln?" --greedy --think --think-budget 0
    code 0
    out_is "$KILN"
    run run -m $M -p "What is a kiln?" --greedy --think --think-budget 5 --budget-message " That will do."
    code 0
    err_has " That will do."
}

t_stats_are_one_json_line() {
    run run -m $M -p "What is a kiln?" --no-think --greedy --stats json
    code 0
    out_is "$KILN"
    [ "$(wc -l <"$T/err")" -eq 1 ] || bad "standard error has $(wc -l <"$T/err") lines"
    for key in prompt_tokens cached_tokens prefill_ms decode_tokens decode_ms rounds \
        tokens_per_round accepted device_free device_total; do
        grep -qE "\"$key\": [0-9]+" "$T/err" || bad "no $key in $(cat "$T/err")"
    done
    err_has '"prompt_tokens": 18,'
    err_has '"decode_tokens": 29,'
    err_has '"finish": "stop"'
    if command -v python3 >/dev/null; then
        python3 -c 'import json, sys; json.loads(open(sys.argv[1]).read())' "$T/err" ||
            bad "this is no JSON: $(cat "$T/err")"
    fi
}

t_logprobs_are_json_lines() {
    run run -m $M -p "What is a kiln?" --no-think --greedy --logprobs 3
    code 0
    out_is "$KILN"
    cp "$T/err" "$T/lines"
    [ "$(wc -l <"$T/lines")" -eq 29 ] || bad "$(wc -l <"$T/lines") lines, expected one for each of 29 tokens"
    tail -n 1 "$T/lines" | grep -q '"id": 8162, "text": "<|im_end|>"' || bad "last line: $(tail -n 1 "$T/lines")"
    head -n 1 "$T/lines" | grep -qE '^\{"position": 18, "id": 32, "text": "A", "logprob": -[0-9.e-]+, "top": \[\{"id": 32, ' ||
        bad "first line: $(head -n 1 "$T/lines")"
    [ "$(head -n 1 "$T/lines" | grep -o '"logprob"' | wc -l)" -eq 4 ] || bad "not three alternatives"
    run run -m $M -p "What is a kiln?" --no-think --greedy --logprobs 3 --logprobs-file "$T/file"
    err_empty
    cmp -s "$T/lines" "$T/file" || bad "--logprobs-file differs"
    run run -m $M -p "What is a kiln?" --no-think --greedy --logprobs 0
    grep -q '"top": \[\]' "$T/err" || bad "--logprobs 0: $(head -n 1 "$T/err")"
}

# The file is replaced by a whole one or stays as it was.
t_logprobs_file_is_whole() {
    echo before >"$T/kept"
    refused "the context holds 16" run -m $M -p "What is a kiln? What is a kiln?" --ctx 16 \
        --logprobs 1 --logprobs-file "$T/kept"
    [ "$(cat "$T/kept")" = before ] || bad "the file of before is lost: $(head -c 100 "$T/kept")"
    refused "the context holds 16" run -m $M -p "What is a kiln? What is a kiln?" --ctx 16 \
        --logprobs 1 --logprobs-file "$T/none_yet"
    for f in "$T"/kept?* "$T"/none_yet*; do
        [ ! -e "$f" ] || bad "$f is left"
    done
    run run -m $M -p "What is a kiln?" --no-think --greedy -n 2 --logprobs 0 --logprobs-file "$T/kept"
    [ "$(wc -l <"$T/kept")" -eq 2 ] || bad "$(cat "$T/kept")"
    run run -m $M -p "What is a kiln?" --no-think --greedy -n 2 --logprobs 0 --logprobs-file /dev/stderr
    [ "$(wc -l <"$T/err")" -eq 2 ] || bad "$(cat "$T/err")"
}

t_limits_and_stops() {
    run run -m $M -p "What is a kiln?" --no-think --greedy -n 3 --stats json
    err_has '"finish": "length"'
    err_has '"decode_tokens": 3,'
    run run -m $M -p "What is a kiln?" --no-think --greedy --stop burning --stop nothing --stats json
    out_is "A kiln is a furnace for firing or "
    err_has '"finish": "stop_string"'
    run run -m $M -p "What is a kiln?" --no-think --greedy --ctx 24 --stats json
    code 0
    err_has "the context is full"
    err_has '"finish": "context"'
}

t_sampling() {
    story="Tell me a story about a cat."
    run run -m $M -p "$story" --no-think --seed 7 -n 60 --temp 1
    cp "$T/out" "$T/seven"
    run run -m $M -p "$story" --no-think --seed 7 -n 60 --temp 1 --threads 1
    cmp -s "$T/out" "$T/seven" || bad "the same seed gave another text"
    run run -m $M -p "$story" --no-think --seed 8 -n 60 --temp 1
    ! cmp -s "$T/out" "$T/seven" || bad "another seed gave the same text"
    run run -m $M -p "What is a kiln?" --no-think --greedy -n 1 --logit-bias 32=-100
    [ "$(cat "$T/out")" != A ] || bad "a banned token was chosen"
    run run -m $M -p "What is a kiln?" --no-think -n 4 --logit-bias 32=100
    out_is "AAAA"
    run run -m $M -p "What is a kiln?" --no-think --logit-bias 8190=1
    code 2
    err_has "logit_bias"
}

t_speculation_changes_nothing() {
    story="Tell me a story about a cat."
    run run -m $M -p "$story" --no-think --greedy -n 100 --spec none
    cp "$T/out" "$T/greedy"
    run run -m $M -p "$story" --no-think --seed 3 -n 100 --spec none
    cp "$T/out" "$T/seeded"
    for spec in ngram mtp dflash2 auto; do
        run run -m $M -p "$story" --no-think --greedy -n 100 --spec $spec --stats json
        code 0
        cmp -s "$T/out" "$T/greedy" || bad "--spec $spec changes the greedy text"
        run run -m $M -p "$story" --no-think --seed 3 -n 100 --spec $spec --draft-k 3 --fixed-k
        cmp -s "$T/out" "$T/seeded" || bad "--spec $spec changes the text of a seed"
    done
    run run -m $M -p "$story" --no-think --greedy -n 100 --spec mtp --draft-k 3 --fixed-k --stats json
    grep -qE '"tokens_per_round": [2-4]\.' "$T/err" || bad "mtp: $(cat "$T/err")"
    run run -m $M -p x --spec mtq
    code 2
    err_has mtp
    run run -m $M -p x --spec dflash2 --draft-model "$T/none"
    [ "$rc" -ne 0 ] || bad "a drafter that is not there was used"
    one_line_error
}

# However the model's directory is spelled; beside a link or beside what it leads to.
t_drafter_beside_the_model() {
    case $L in /*) program=$L ;; *) program=$PWD/$L ;; esac
    ln -s "$PWD/$M" "$T/linked"
    for dir in . ./ ../nano/. ../nano//; do
        (cd $M && "$program" run -m $dir -p x -n 1 --spec dflash2) >"$T/out" 2>"$T/err" </dev/null
        rc=$?
        code 0
    done
    run run -m "$T/linked" -p x -n 1 --spec dflash2
    code 0
}

# By rejection a seed's tokens depend on how many are drafted, but not on where the output is cut.
t_rejection_does_not_depend_on_the_limit() {
    for spec in dflash2 mtp; do
        set -- run -m $M -p "Tell me a story about a cat." --no-think --seed 5 --temp 1.2 \
            --rejection --spec $spec
        run "$@" -n 40
        code 0
        cp "$T/out" "$T/long"
        for n in 2 9 16 23; do
            run "$@" -n $n
            head -c "$(($(wc -c <"$T/out") - 1))" "$T/out" >"$T/short" # less the line's end
            cmp -s -n "$(wc -c <"$T/short")" "$T/short" "$T/long" ||
                bad "$spec: $n tokens are not the first of 40: $(cat "$T/out")"
        done
    done
}

t_tool_call() {
    cat >"$T/tools.json" <<'END'
[{"type": "function", "function": {"name": "order_status", "description": "Get the status of an order.", "parameters": {"type": "object", "properties": {"id": {"type": "integer", "description": "The order number"}}, "required": ["id"]}}}]
END
    run run -m $M -p "Check order number 795914." --tools "$T/tools.json" --no-think --greedy --stats json
    code 0
    out_is '{"name": "order_status", "arguments": {"id": 795914}}'
    err_has '"finish": "calls"'
}

# Case B89's long run. Its 2000 tokens are for a large checkpoint: this one runs out of stories sooner.
t_long_sampled_text_does_not_loop() {
    case $L in *address* | *thread* | *undefined*) skip "too slow with sanitizers" && return ;; esac
    run run -m $M -p "Tell me a story about a cat." --no-think --temp 0.7 --top-k 0 --top-p 1 --seed 1 \
        -n 600 --ignore-eos --logprobs 0 --logprobs-file "$T/lp"
    code 0
    share=$(sed -E 's/.*"id": ([0-9]+), .*/\1/' "$T/lp" | awk '
        NR > 3 { n++; if (seen[a " " b " " c " " $1]++) again++ }
        { a = b; b = c; c = $1 }
        END { printf "%d", n ? 1000 * again / n : 1000 }')
    [ "$share" -lt 300 ] || bad "$share of 1000 runs of four tokens are repeated"
}

t_broken_pipe_is_quiet() {
    "$L" run -m $M -p "Tell me a story about a cat." --no-think -n 200 --seed 1 2>"$T/err" |
        head -c 1 >"$T/out"
    err_empty
    if [ -w /dev/full ]; then
        "$L" run -m $M -p "What is a kiln?" --no-think --greedy >/dev/full 2>"$T/err"
        rc=$?
        code 1
        err_has "standard output: No space left"
    fi
}

t_interrupt_ends_the_answer() {
    rm -f "$T/out"
    "$L" run -m $M -p "Tell me a story." --no-think --ignore-eos --seed 1 --stats json >"$T/out" 2>"$T/err" &
    pid=$!
    i=0
    while [ ! -s "$T/out" ] && [ $i -lt 600 ]; do # the engine is loaded, the answer has begun
        sleep 0.1
        i=$((i + 1))
    done
    kill -INT $pid
    wait $pid
    rc=$?
    code 130
    [ -s "$T/out" ] || bad "no answer before the interrupt"
    err_has '"finish": "cancelled"'
}

# ---- Other commands --------------------------------------------------------------------------

t_perplexity() {
    run perplexity -m $M -f tests/golden/passage.txt --activations f32
    code 0
    grep -qE '^1\.66[34][0-9]{2} nats a token, perplexity 5\.2[78][0-9]{3}, over 909 tokens$' "$T/out" ||
        bad "$(cat "$T/out")"
    awk '{ d = $1 - 1.66404; exit !(d < 1e-4 && d > -1e-4) }' "$T/out" || bad "$(cat "$T/out"), expected 1.66404"
    run perplexity -m $M -f tests/golden/passage.txt --kv fp8
    grep -qE '^1\.6[67][0-9]{3} nats a token' "$T/out" || bad "$(cat "$T/out")"
    run perplexity -m $M -f tests/golden/passage.txt --activations f32 --kv f32 --chunk 100 --json
    out_has '"tokens": 900}'
}

t_tokenize() {
    run tokenize -m $M -p "What is a kiln?" --count
    code 0
    n=$(cat "$T/out")
    run tokenize -m $M -p "What is a kiln?"
    [ "$(wc -l <"$T/out")" -eq "$n" ] || bad "$(wc -l <"$T/out") lines for $n tokens"
    for text in "What is a kiln?" "héllo, 世界 🙂  <|im_end|>"; do
        run tokenize -m $M -p "$text" --ids
        run tokenize -m $M -p "$(cat "$T/out")" --decode
        out_is "$text"
    done
    run tokenize -m $M -p "<|im_end|>" --control --ids
    out_is 8162
    run tokenize -m $M -p "<|im_end|>" --ids
    [ "$(wc -w <"$T/out")" -gt 1 ] || bad "spelled-out text became a control token"
    usage "is no token id" tokenize -m $M -p "1 x" --decode
}

t_template() {
    run template -m $M -p "What is a kiln?" --no-think
    code 0
    printf '<|im_start|>user\nWhat is a kiln?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n' >"$T/want"
    cmp -s "$T/out" "$T/want" || bad "$(cat "$T/out")"
    run template -m $M -p "What is a kiln?" --no-think --ids
    [ "$(wc -w <"$T/out")" -eq 18 ] || bad "$(wc -w <"$T/out") ids, expected 18"
    printf '{"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "f"}}]}' >"$T/c.json"
    run template -m $M --messages "$T/c.json" --system "Be brief." --no-generation-prompt
    code 0
    out_has "Be brief."
    out_has '{"type": "function", "function": {"name": "f"}}'
    ! grep -q assistant "$T/out" || bad "a generation prompt came"
}

t_inspect() {
    run inspect $M --ctx 1000
    code 0
    out_has "hidden 320, MLP 1088, 8 layers"
    out_has "nvfp4"
    out_has "memory at 1000 positions"
    out_has "mapped from the files"
    out_has "head-room"
    run inspect $M --tensors --matrices
    out_has "model.language_model.layers.0.linear_attn.A_log"
    run inspect $M --schedule
    code 0
    out_has "rmsnorm"
}

# What does not fit is shown and refused; auto takes what does; the plan comes before the answer if asked for.
t_memory() {
    usage "--memory is 0, expected" run -m $M -p x --memory 0
    usage "--ctx is \"car\", expected a whole number or auto" run -m $M -p x --ctx car
    run run -m $M -p x --memory 0.08 --device cpu
    code 1
    err_has "memory at 32768 positions, 1 slot, on cpu"
    err_has "  KV cache "
    err_has "lathe: a context of 32768 in 1 slot takes"
    err_has "it may take 80.0 MB; a context of "
    run run -m $M -p "What is a kiln?" --no-think --greedy --memory 0.08 --ctx auto --plan --device cpu
    code 0
    out_is "$KILN"
    err_has "positions, 1 slot, on cpu"
    ! grep -q "at 32768" "$T/err" || bad "all of the context in 80 MB"
    run inspect $M --memory 0.001 --device cpu
    code 0
    out_has "memory at 32768 positions"
    out_has "no context fits"
    run run -m $M -p x -n 1 --plan # on a machine with or without a GPU
    code 0
    run inspect $M --ctx auto --device cpu
    code 0
    out_has "memory at 32768 positions"
    if ! "$L" run -m $M -p x -n 1 --device cuda >"$T/out" 2>"$T/err" </dev/null; then
        rc=1
        one_line_error # no GPU, no driver, or a build without: said, not guessed at
    fi
}

t_chat_from_a_pipe() {
    printf 'What is a kiln?\n/stats\n/save %s/chat.json\n/reset\n/load %s/chat.json\n/save %s/again.json\n/quit\nnot read\n' \
        "$T" "$T" "$T" | "$L" chat -m $M --no-think --greedy >"$T/out" 2>"$T/err"
    rc=$?
    code 0
    [ "$(head -n 1 "$T/out")" = "$KILN" ] || bad "$(head -n 1 "$T/out")"
    out_has "prompt 18 tokens"
    [ "$(wc -l <"$T/out")" -eq 2 ] || bad "$(cat "$T/out")"
    err_empty
    cmp -s "$T/chat.json" "$T/again.json" || bad "save and load changed the conversation"
    printf '[{"role": "user", "content": "What is a kiln?"}, {"role": "assistant", "content": "%s"}]\n' "$KILN" >"$T/want"
    cmp -s "$T/chat.json" "$T/want" || bad "$(cat "$T/chat.json")"
    printf 'What is a \\\nkiln?\n/system Be brief.\nWhat is a kiln?' |
        "$L" chat -m $M --no-think --greedy >"$T/out" 2>"$T/err"
    rc=$?
    code 0
    [ "$(wc -l <"$T/out")" -eq 2 ] || bad "$(cat "$T/out")"
    printf 'x\n' | "$L" chat -m $M --messages "$T/chat.json" --no-think --greedy -n 5 >"$T/out" 2>"$T/err"
    rc=$?
    code 0
    printf 'x\n' | "$L" chat -m $M --no-think --greedy -n 1 >"$T/out" 2>"$T/err"
    err_has "[stopped at 1 token]"
    printf '/think on\nWhat is 17 + 25?\n' | "$L" chat -m $M --effort none --greedy >"$T/out" 2>"$T/err"
    err_has "10 + 20 = 30"
}

# A file that cannot be gone on from changes nothing; one with tools keeps them.
t_chat_loads_what_it_can_go_on_from() {
    for bad_file in '[1, 2, 3]' '[{}]' '[{"role": "wizard", "content": "x"}]' '[{"role": "user", "content": 5}]' \
        '{"messages": [{"role": "user", "content": "x"}], "tools": [5]}' '{"messages": 5}' '7'; do
        echo "$bad_file" >"$T/bad.json"
        printf '/system Be brief.\nWhat is a kiln?\n/save %s/before\n/load %s/bad.json\n/save %s/after\n' "$T" "$T" "$T" |
            "$L" chat -m $M --no-think --greedy >"$T/out" 2>"$T/err"
        rc=$?
        code 1
        one_line_error
        err_has "bad.json: "
        grep -q kiln "$T/before" && cmp -s "$T/before" "$T/after" || bad "$bad_file: $(cat "$T/after")"
        "$L" chat -m $M --messages "$T/bad.json" >"$T/out" 2>"$T/err" </dev/null
        rc=$?
        code 1
        one_line_error
    done
    printf '{"messages": [{"role": "system", "content": "Be brief."}], "tools": [{"type": "function", "function": {"name": "order_status", "description": "Get the status of an order.", "parameters": {"type": "object", "properties": {"id": {"type": "integer", "description": "The order number"}}, "required": ["id"]}}}]}\n' >"$T/tools.json"
    printf '/load %s/tools.json\n/save %s/again.json\nCheck order number 795914.\n/save %s/called.json\n/load %s/called.json\n' "$T" "$T" "$T" "$T" |
        "$L" chat -m $M --no-think --greedy >"$T/out" 2>"$T/err"
    rc=$?
    code 0
    out_has '{"name": "order_status", "arguments": {"id": 795914}}'
    cmp -s "$T/tools.json" "$T/again.json" || bad "$(cat "$T/again.json")"
    echo '[]' >"$T/none.json"
    printf '/load %s/tools.json\n/load %s/none.json\n/save %s/again.json\n' "$T" "$T" "$T" |
        "$L" chat -m $M >"$T/out" 2>"$T/err"
    rc=$?
    code 0
    cmp -s "$T/none.json" "$T/again.json" || bad "$(cat "$T/again.json")"
}

t_chat_from_a_pipe_tells_failures() {
    for line in '/hlep' "/load $T/none" '/think maybe' '/save' "$(printf 'a\377')"; do
        printf '%s\nWhat is a kiln?\n' "$line" | "$L" chat -m $M --no-think --greedy >"$T/out" 2>"$T/err"
        rc=$?
        code 1
        one_line_error
        out_is "$KILN"
    done
    printf '%s\nHi\n' "What is a kiln? What is a kiln? What is a kiln? What is a kiln?" |
        "$L" chat -m $M --no-think --greedy --ctx 20 -n 1 >"$T/out" 2>"$T/err"
    rc=$?
    code 1
    err_has "the context holds 20"
    echo x | "$L" chat -m $M --logit-bias 8190=1 >"$T/out" 2>"$T/err"
    rc=$?
    code 2
    err_has "logit_bias"
}

t_chat_on_a_terminal() {
    command -v python3 >/dev/null || { skip "python3 is not installed" && return; }
    python3 tests/cli/chat_terminal.py "$L" $M >"$T/out" 2>&1 || bad "$(cat "$T/out")"
}

for t in $(sed -n 's/^t_\([a-z_0-9]*\)() {$/\1/p' tests/cli/test_cli.sh); do
    it "$t"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
