#!/bin/sh
# Installs the Debian packages that are missing, as root or through sudo; without any missing it does
# nothing and needs no network.
#   tools/deps.sh build          what `make` needs
#   tools/deps.sh build check    also what `make check` needs to skip nothing
set -eu

build="gcc binutils make libc6-dev libjansson-dev libmicrohttpd-dev libgnutls28-dev libzstd-dev libpcre2-dev libutf8proc-dev libssl-dev libedit-dev"
check="clang clang-format libclang-rt-14-dev gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
       python3 python3-jinja2 python3-prometheus-client openssl haproxy chromium-headless-shell"

wanted=
for set in "$@"; do
    case $set in
    build) wanted="$wanted $build" ;;
    check)
        wanted="$wanted $check"
        # Node.js brings npm along where it does not come from Debian.
        command -v node >/dev/null || wanted="$wanted nodejs"
        command -v npm >/dev/null || wanted="$wanted npm"
        ;;
    *)
        echo "usage: tools/deps.sh [build] [check]" >&2
        exit 2
        ;;
    esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is no Debian: please install what these packages hold:$wanted"
    exit 0
fi

missing=
for p in $wanted; do
    state=$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null; then
    as_root="sudo"
else
    echo "Missing packages, and no sudo to install them; as root: apt-get install$missing" >&2
    exit 1
fi
echo "Installing:$missing"
export DEBIAN_FRONTEND=noninteractive
install="$as_root apt-get install -y -qq --no-install-recommends"
# The lists of packages may be absent or old.
# shellcheck disable=SC2086
$install $missing >/dev/null 2>&1 || { $as_root apt-get update -qq && $install $missing >/dev/null; }
