#!/bin/sh
# What `make demo` shows once ./lathe is built: the shipped model answers, streamed as it comes.
set -eu
cd "$(dirname "$0")/.."
model=models/nano

ask() {
    echo
    printf '$ ./lathe run -m %s' "$model"
    for a in "$@"; do
        case $a in
        *[!A-Za-z0-9_./=-]*) printf ' "%s"' "$a" ;;
        *) printf ' %s' "$a" ;;
        esac
    done
    echo
    ./lathe run -m "$model" "$@"
}

# The answer that the reference implementation gives too.
want="A kiln is a furnace for firing or burning or drying such things as porcelain or bricks."
got=$(./lathe run -m "$model" -p "What is a kiln?" --no-think --greedy)
ask -p "What is a kiln?" --no-think --greedy --stats text
if [ "$got" != "$want" ]; then
    echo "This is not the expected answer: $want" >&2
    exit 1
fi
ask -p "What is 17 + 25?" --greedy
ask -p "Tell me a story about a cat." --no-think --seed 1 -n 200 --stats text

cat <<END

The model has 22 million parameters: it knows some definitions, small sums and short stories, and is
wrong about most other things. Next:
  ./lathe chat -m $model
  ./lathe --help
END
