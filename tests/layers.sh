#!/bin/sh
# Checks every #include "..." below src, server, cli and tools against tests/layers.txt: a unit may
# include itself, lathe/lathe.h, and the units named on its line.
set -eu
cd "$(dirname "$0")/.."
bad=$(
    find src server cli tools -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort |
    while read -r f; do
        unit=$(dirname "$f")
        unit=${unit#src/}
        case $unit in server/*) unit=server ;; esac
        allowed=$(sed -n "s|^$unit:||p" tests/layers.txt)
        grep -oE '^#include "[^"]+"' "$f" | cut -d'"' -f2 | while read -r inc; do
            case $inc in
            lathe/lathe.h) continue ;;
            */*) dir=${inc%/*} ;;
            *) dir=$unit ;;
            esac
            ok=no
            for u in $unit $allowed; do [ "$dir" = "$u" ] && ok=yes; done
            [ $ok = yes ] || echo "$f: may not include \"$inc\" (tests/layers.txt)"
        done
    done
)
if [ -n "$bad" ]; then
    echo "$bad"
    exit 1
fi
