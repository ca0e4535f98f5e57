#!/bin/sh
# Installs what a command of the Makefile needs and this system lacks, through apt.
#   setup.sh run [MODEL]   a C compiler; Python with pip while MODEL is not there yet
#   setup.sh test          also the other compilers, Wine, qemu and Python modules that parts of the tests need
# Without root it prints the line to type. It fails only where the command could do nothing at all.
set -eu
cd "$(dirname "$0")/.."
mode=${1:-run}
model=${2:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
log=build/setup.log
required='' optional=''

have()    { command -v "$1" >/dev/null 2>&1; }
include() { echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1; }
need()    { required="$required $*"; }
want()    { optional="$optional $*"; }

if ! have cc || { [ "$mode" = test ] && ! have gcc; }; then need gcc; fi
include stdio.h || need libc6-dev
if [ ! -e "$model" ] || [ "$mode" = test ]; then
    have python3                             || need python3
    python3 -m pip --version >/dev/null 2>&1 || need python3-pip
fi
include vulkan/vulkan_core.h || want libvulkan-dev
if [ "$mode" = test ]; then
    ls /usr/share/vulkan/icd.d/lvp_icd.*json >/dev/null 2>&1 || want mesa-vulkan-drivers
    ls /usr/share/vulkan/explicit_layer.d/*validation* >/dev/null 2>&1 || want vulkan-validationlayers
    have g++     || want g++
    have clang   || want clang
    have setarch || want util-linux
    [ -e "$(clang -print-file-name=lib/linux/libclang_rt.fuzzer-x86_64.a 2>/dev/null)" ] || want libclang-rt-dev
    have aarch64-linux-gnu-gcc || want gcc-aarch64-linux-gnu
    [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || want libc6-dev-arm64-cross
    have qemu-aarch64 || have qemu-aarch64-static || want qemu-user
    if [ "$(uname -m)" = x86_64 ]; then
        have x86_64-w64-mingw32-gcc || want gcc-mingw-w64-x86-64-win32
        have wine64 || [ -e /usr/lib/wine/wine64 ] || want wine64
        [ -e /usr/include/wine/wine/msvcrt/stdio.h ] || want libwine-dev
    fi
fi

mkdir -p build
quietly() {  # a person sees the installer's own progress; for everybody else there is the log
    if [ -t 1 ]; then "$@" </dev/null; else "$@" </dev/null >>"$log" 2>&1; fi
}
apt() {
    quietly env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}
install() {
    : >"$log"
    apt update || echo "setup: apt-get update failed, going on with the lists there are" >&2
    known=''
    for p in $required $optional; do
        if apt-cache show "$p" >/dev/null 2>&1; then known="$known $p"; else echo "setup: no package $p here"; fi
    done
    [ -n "$known" ] || return 0
    echo "setup: installing$known (log: $log)"
    # shellcheck disable=SC2086  # a list of names
    apt install -y --no-install-recommends $known && return 0
    # One package that cannot be had must not keep the others away.
    for p in $known; do
        apt install -y --no-install-recommends "$p" || echo "setup: $p could not be installed"
    done
}

if [ -n "$required$optional" ]; then
    line="apt-get update && apt-get install -y --no-install-recommends$required$optional"
    if ! have apt-get; then
        echo "setup: missing here, by their Debian names:$required$optional" >&2
        [ -z "$required" ] || exit 1
    elif [ "$(id -u)" != 0 ]; then
        echo "setup: not root, so please type:  sudo sh -c '$line'" >&2
        [ -z "$required" ] || exit 1
    else
        install
        for p in $required; do
            case $p in
            gcc) have cc ;;
            libc6-dev) include stdio.h ;;
            python3) have python3 ;;
            python3-pip) python3 -m pip --version >/dev/null 2>&1 ;;
            esac || { [ -t 1 ] || tail -n 5 "$log"; echo "setup: $p could not be installed: $line" >&2; exit 1; }
        done
    fi
fi

# Reference code in Python that some checks compare with; a check whose module is missing is skipped and says so.
if [ "$mode" = test ] && ! PYTHONPATH=build/python python3 -c 'import numpy, gguf, jinja2' 2>/dev/null; then
    echo "setup: fetching the Python modules numpy, gguf and jinja2 into build/python"
    quietly env PIP_ROOT_USER_ACTION=ignore python3 -m pip install -q --disable-pip-version-check --no-warn-script-location --target build/python \
        numpy gguf jinja2 || echo "setup: numpy, gguf and jinja2 could not be installed"
fi
