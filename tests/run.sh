#!/usr/bin/env bash
# The runner behind `make test` and `make check-all`.
#
#   tests/run.sh [--all] [PATTERN...]   runs all parts, or those whose name matches a shell pattern ("asan*", "*gguf")
#   tests/run.sh --list [--all]         names them
#
# A part is "KIND" or "KIND NAME" and runs part_KIND below in a process of its own, $JOBS at a time. It ends with the line
# "N passed, N failed, N skipped". A line a part is printed; a failing one prints its log (build/test/PART.log);
# the last line sums all. Tests, fuzz targets and checks are found by name: tests/test_*.c, fuzz_*.c, check_*.py.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

JOBS=${JOBS:-$(nproc)}
export NOVA_TEST_DATA=${NOVA_TEST_DATA:-../shared}
export NOVA_MODEL=${NOVA_MODEL:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
export RUN_LONG=${RUN_LONG:-0}          # 1: check-all
export PYTHONPATH=build/python PYTHONDONTWRITEBYTECODE=1
export WINEPREFIX=$PWD/build/wine WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml='
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export LC_ALL=C.UTF-8 TZ=UTC

OUT=build/test
STRICT='-Wall -Wextra -Wconversion -Wshadow -Werror'
# A test sees nova.c as part of its own file; what it does not call is dropped before it costs time.
TEST='-I. -DNOVA_API=static -Wno-unused-function'
# The headers of Vulkan in a folder of their own, for compilers of other systems. Without them everything is built without GPUs.
INCLUDE='-I. -DNOVA_NO_VULKAN'
if vulkan_headers=$(echo '#include <vulkan/vulkan_core.h>' | gcc -M -x c - 2>/dev/null | grep -o '[^ ]*/vulkan/vulkan_core\.h'); then
    mkdir -p build/include
    for name in vulkan vk_video; do ln -sfn "${vulkan_headers%/vulkan/vulkan_core.h}/$name" build/include/$name; done
    INCLUDE='-I. -Ibuild/include'
fi
# Tests of GPUs run on Vulkan drivers; the others are compiled without Vulkan, which costs each of them some seconds.
is_gpu_test() { [[ $1 == gpu || $1 == vk_* ]]; }
EMULATED='-DSLOW=1'   # for emulators: a test's own limits in seconds do not hold there
LIBS='-lm -lpthread -ldl'
export DRIVERS=${DRIVERS:-debian}        # and what a lab has, by its run.sh: NOVA_LAB_RUN
THREADED='platform pool engine session api'   # also run under the thread sanitizer

# ---- What a part says ----

passed=0 failed=0 skipped=0
skip()   { echo "skipped: $*"; skipped=$((skipped + 1)); }
finish() { echo "$passed passed, $failed failed, $skipped skipped"; exit $((failed != 0)); }
skip_all() { skip "$@"; finish; }
# One check: a description and a command.
check() {
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $what: $*"; fi
}
have() { command -v "$1" >/dev/null 2>&1; }
# Builds by one command, or ends the part as failed.
build() { "$@" || { echo "FAILED: build: $*"; failed=1; finish; }; }

need_nova() {
    flock build/test/build.lock make -s --no-print-directory build/nova >&2 || { failed=1; finish; }
}
need_model() {
    [ -e "$NOVA_MODEL" ] && return
    local why
    why=$(flock build/test/model.lock python3 examples/get_model.py "$NOVA_MODEL" 2>&1 >/dev/null) ||
        skip_all "no model: ${why%%$'\n'*}"
}
need_wine() {
    [ "$(uname -m)" = x86_64 ] || skip_all "Wine runs x86-64 programs; this is $(uname -m)"
    have x86_64-w64-mingw32-gcc || skip_all "no x86_64-w64-mingw32-gcc"
    wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null) || skip_all "no wine64"
    [ -e build/wine/ready ] && return
    # The folder with Windows' settings, made once.
    { flock 9; [ -e build/wine/ready ] || { "$wine" wineboot -i && touch build/wine/ready; } } 9>build/test/wine.lock \
        </dev/null >/dev/null 2>&1 || skip_all "Wine does not start here"
}
need_clang() { have clang || skip_all "no clang"; }

# A C file that calls nothing but the system can be linked with these flags, where the compiler has the runtime.
links() { echo 'int main(void) { return 0; }' | "$@" -x c - -o /dev/null >/dev/null 2>&1; }

# ---- The parts ----

part_build() {
    check "build/nova builds" make -s --no-print-directory build/nova
    check "no -march: it must run on every x86-64" sh -c '! grep -nE -- "-m(arch|cpu|tune|avx|sse)" Makefile build.bat'
    finish
}

# What is committed is what src/ gives.
part_join() {
    check "src/ joins" python3 src/join.py -o $OUT/nova.c
    check "nova.c is src/ joined (else: make nova.c)" cmp nova.c $OUT/nova.c
    rm -rf $OUT/broken && mkdir $OUT/broken && cp -r src shaders $OUT/broken/
    echo '#include "session.h"' >>$OUT/broken/src/base.h
    cp nova.c $OUT/nova.c
    check "a wrong include does not join" sh -c "! python3 $OUT/broken/src/join.py -o $OUT/nova.c 2>$OUT/join.err"
    check "... says which in one line" sh -c "[ \$(wc -l <$OUT/join.err) = 1 ] && grep -q 'base includes session' $OUT/join.err"
    check "... and leaves the old file as it was" cmp nova.c $OUT/nova.c
    finish
}

# Silent under strict warnings: nova.c, nova.h alone, the examples. With code generation, since some warnings and the
# errors of target attributes appear only there.
part_strict() {
    local compiler=${1%%,*} language=${1##*,} cc=() source
    have "$compiler" || skip_all "no $compiler"
    case $language in
    c++*) cc=("$compiler" -x c++ "-std=$language") ;;
    *)    cc=("$compiler" -x c "-std=$language") ;;
    esac
    links "$compiler" "${cc[@]:1:2}" || [[ $compiler == *-* ]] || skip_all "$compiler cannot build $language here"
    echo '#include "nova.h"' >"$OUT/header.$1.c"
    for source in nova.c "$OUT/header.$1.c" examples/*.c; do
        # shellcheck disable=SC2086
        check "$source is silent" "${cc[@]}" $STRICT -Wpedantic -O2 $INCLUDE -c "$source" -o "$OUT/strict.$1.o"
    done
    finish
}

# The object gives and takes no names but these.
part_symbols() {
    local o=build/nova.o header
    need_nova
    check "defines nova_version" sh -c "nm -g --defined-only $o | grep -q ' T nova_version\$'"
    check "defines only nova_*" sh -c "! nm -g --defined-only $o | grep -v ' nova_[a-z0-9_]*\$'"
    check "never prints, aborts, exits or handles signals" sh -c \
        "! nm -u $o | grep -wE 'abort|exit|_exit|quick_exit|_Exit|__assert_fail|v?f?printf|v?dprintf|puts|putchar|fputs|fputc|putc|perror|stdout|stderr|stdin|signal|sigaction|setlocale|longjmp|siglongjmp'"
    check "has no global state" sh -c "! size -A -d $o | grep -E '^\\.(data|bss|tdata|tbss) +[1-9]'"
    check "has no writable names but tables with addresses" sh -c "! nm $o | grep -E ' [bBC] '"
    for header in windows.h vulkan pthread.h; do
        check "nova.h does not include $header" sh -c "! gcc -M nova.h | grep -i $header"
        ! have x86_64-w64-mingw32-gcc ||
            check "nova.h does not include $header on Windows" sh -c "! x86_64-w64-mingw32-gcc -M nova.h | grep -i $header"
    done
    finish
}

# The library in somebody's program, in every way of building it.
part_embed() {
    local c="-std=c11 -O1 $INCLUDE" cxx="-x c++ -std=c++17 -O1 $INCLUDE" way
    need_nova
    build gcc $c $STRICT tests/embed.c build/nova.o -o $OUT/embed.c-c $LIBS
    build gcc $c -w -DNOVA_API=static -DEMBED_ONE_FILE tests/embed.c -o $OUT/embed.one $LIBS
    if have g++; then
        build g++ $cxx -w -c nova.c -o $OUT/embed.lib.o
        build g++ $cxx $STRICT -c tests/embed.c -o $OUT/embed.cxx.o
        build gcc $c -c tests/embed.c -o $OUT/embed.c.o
        build g++ $OUT/embed.cxx.o build/nova.o -o $OUT/embed.cxx-c $LIBS
        build g++ $OUT/embed.cxx.o $OUT/embed.lib.o -o $OUT/embed.cxx-cxx $LIBS
        build g++ $OUT/embed.c.o $OUT/embed.lib.o -o $OUT/embed.c-cxx $LIBS
    else
        skip "no g++: not from C++"
    fi
    for way in c-c one cxx-c cxx-cxx c-cxx; do
        [ ! -e $OUT/embed.$way ] || check "embedded ($way)" $OUT/embed.$way
    done
    finish
}

unit() { build "$@" -DNOVA_NO_VULKAN "tests/test_$NAME.c" -o "$OUT/$KIND.$NAME" $LIBS; }

part_unit() { unit gcc -std=c11 -O2 $STRICT $TEST; $OUT/unit.$NAME; }

part_asan() {  # gcc: clang takes thrice as long over the vector code; calls instead of inline checks where there are many
    links gcc -fsanitize=address,undefined || skip_all "gcc has no address sanitizer here"
    unit gcc -std=c11 -O1 -g1 -w -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
        --param asan-instrumentation-with-call-threshold=200 $TEST
    $OUT/asan.$NAME
}

part_tsan() {
    local exact=()
    setarch -R true 2>/dev/null && exact=(setarch -R)   # older runtimes do not know newer kernels' address layout
    links gcc -fsanitize=thread || skip_all "gcc has no thread sanitizer here"
    unit gcc -std=c11 -O1 -g -w -fsanitize=thread $TEST $EMULATED
    "${exact[@]}" $OUT/tsan.$NAME
}

part_wine() {
    need_wine
    build x86_64-w64-mingw32-gcc -std=c11 -O2 -w $TEST $EMULATED -DNOVA_NO_VULKAN "tests/test_$NAME.c" -o "$OUT/wine.$NAME.exe" -static
    "$wine" "$OUT/wine.$NAME.exe"
}

part_arm64() {
    have aarch64-linux-gnu-gcc || skip_all "no aarch64-linux-gnu-gcc"
    local qemu
    qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || skip_all "no qemu-aarch64"
    unit aarch64-linux-gnu-gcc -std=c11 -O2 -w $TEST $EMULATED
    "$qemu" -L /usr/aarch64-linux-gnu $OUT/arm64.$NAME
}

# Microsoft's dialect: clang in its MSVC mode without __clang__, so that nova.c takes the paths that cl would, against
# Wine's headers, which stand in for Microsoft's. An object of that mode also links with MinGW and runs under Wine.
CL_SETS='avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512vbmi'
msvc() {
    local wine=/usr/include/wine/wine resources set sets=()
    # cl has no function attributes for instruction sets and takes every intrinsic anywhere; clang needs them turned on.
    for set in $CL_SETS; do sets+=("-m${set/_/}"); done
    resources=$(clang -print-resource-dir)
    # What Wine's headers lack of C99: NAN and INFINITY as constants, erfc, sig_atomic_t.
    mkdir -p $OUT/msvc
    printf '#include_next <math.h>\n#undef NAN\n#undef INFINITY\n#define NAN __builtin_nanf("")\n#define INFINITY __builtin_inff()\ndouble erfc(double);\n' >$OUT/msvc/math.h
    printf '#include_next <signal.h>\ntypedef int sig_atomic_t;\n' >$OUT/msvc/signal.h
    build clang --target=x86_64-pc-windows-msvc -U__clang__ -fms-compatibility-version=19.29 -nostdlibinc \
        -isystem $OUT/msvc -isystem "$resources/include" -isystem $wine/msvcrt -isystem $wine/windows -D_UCRT -DWINE_UNICODE_NATIVE \
        "${sets[@]}" -Wall -Wextra -Wpedantic -Wno-language-extension-token -Wno-unused-function -Wvla -Wno-unused-function -Werror "$@"
}
need_msvc() {
    need_clang
    [ -e /usr/include/wine/wine/msvcrt/stdio.h ] || skip_all "no libwine-dev (Windows headers)"
}
part_msvc() {
    need_msvc
    local source
    for source in nova.c examples/*.c; do
        msvc -std=c11 $INCLUDE -fsyntax-only "$source"
        msvc -x c++ -std=c++17 $INCLUDE -fsyntax-only "$source"
        passed=$((passed + 2))
    done
    finish
}
part_msvcrun() {
    [ "$NAME" != chat ] || skip_all "Wine's ucrt rounds decimals otherwise than Microsoft's"
    need_msvc
    need_wine
    local set
    for set in $CL_SETS; do
        grep -qw "$set" /proc/cpuinfo || skip_all "the compiler's whole output would need $set here"
    done
    msvc -std=c11 -O1 -w -ffp-contract=off $TEST $EMULATED -DNOVA_NO_VULKAN -c "tests/test_$NAME.c" -o "$OUT/msvcrun.$NAME.obj"
    # The stack probe has another name in MinGW; both keep every register.
    build x86_64-w64-mingw32-gcc "$OUT/msvcrun.$NAME.obj" -o "$OUT/msvcrun.$NAME.exe" -lsynchronization -lucrt \
        -Wl,--undefined=___chkstk_ms,--defsym=__chkstk=___chkstk_ms
    "$wine" "$OUT/msvcrun.$NAME.exe"
}

# The command line as other systems see it: the logits of a small model are those of this system's build.
part_abroad() {
    local small=$NOVA_TEST_DATA/models/relu2-8m-f16.gguf exe=$OUT/abroad.$1.exe qemu runner=()
    [ -e "$small" ] || skip_all "no $small"
    need_nova
    case $1 in
    wine)
        need_wine
        build x86_64-w64-mingw32-gcc -O2 $INCLUDE examples/nova.c nova.c -o "$exe" -static
        runner=("$wine" "$exe")
        ;;
    arm64)
        have aarch64-linux-gnu-gcc || skip_all "no aarch64-linux-gnu-gcc"
        qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || skip_all "no qemu-aarch64"
        build aarch64-linux-gnu-gcc -O2 $INCLUDE examples/nova.c nova.c -o "$exe" $LIBS
        runner=("$qemu" -L /usr/aarch64-linux-gnu "$exe")
        ;;
    oldcpu)  # x86-64 as it was in 2003: the very program that make builds, which must ask before it uses anything newer
        [ "$(uname -m)" = x86_64 ] || skip_all "not an x86-64 system"
        qemu=$(command -v qemu-x86_64 || command -v qemu-x86_64-static) || skip_all "no qemu-x86_64"
        runner=("$qemu" -cpu Opteron_G1 build/nova)
        ;;
    esac
    check "here" build/nova logits -m "$small" --ids 1,300,20,4000,7,81,256,99 -o "$OUT/abroad.$1.here"
    check "there" "${runner[@]}" logits -m "$small" --ids 1,300,20,4000,7,81,256,99 -o "$OUT/abroad.$1.there"
    check "the same" python3 tests/same_logits.py "$OUT/abroad.$1.there" "$OUT/abroad.$1.here"
    finish
}

# build.bat under Wine's cmd, once for each compiler it knows. Fakes note how they are called; MinGW's call is then made.
part_batch() {
    need_wine
    local fake dir args
    batch() { (cd "$OUT/batch/$1" && WINEPATH="$(pwd | sed 's|^|Z:|; s|/|\\|g')\\bin" "$wine" cmd /c build.bat </dev/null >log 2>&1); }
    batch_fails() { ! FAKE_FAILS=1 batch "$1"; }
    rm -rf $OUT/batch
    for fake in cl clang-cl gcc none; do
        dir=$OUT/batch/$fake
        mkdir -p $dir/bin
        cp -r build.bat nova.c nova.h examples $dir/
        if [ $fake = none ]; then
            check "build.bat fails without a compiler" batch_fails none
            check "... and names what it looked for" grep -q clang-cl $dir/log
            continue
        fi
        build x86_64-w64-mingw32-gcc -O1 tests/fake_compiler.c -o $dir/bin/$fake.exe
        check "build.bat fails with $fake" batch_fails $fake
        rm $dir/calls
        check "build.bat ends well with $fake" batch $fake
        check "$fake is given nova.c" grep -q ' nova\.c' $dir/calls
        check "$fake is given examples/nova.c" grep -q ' examples/nova\.c' $dir/calls
    done
    args=$(tr -d "\r" <$OUT/batch/gcc/calls | sed -n "s/^gcc\(\.exe\)\{0,1\} -std/-std/p")
    check "MinGW's call compiles" sh -c "cd $OUT/batch/gcc && x86_64-w64-mingw32-gcc $args"
    "$wine" $OUT/batch/gcc/build/nova.exe help >$OUT/batch/help.log 2>&1
    check "nova.exe runs" grep -q "nova tokenize" $OUT/batch/help.log
    [ $failed = 0 ] || head -n 50 $OUT/batch/*/log $OUT/batch/*/calls $OUT/batch/help.log
    finish
}

# Each seed by itself under the address sanitizer, then libFuzzer from the seeds for some seconds.
part_fuzz() {
    local seeds=() seconds=4 found=$OUT/fuzz.$NAME.found
    [ "$RUN_LONG" = 0 ] || seconds=120
    [ -d "tests/seeds/$NAME" ] && seeds=(tests/seeds/"$NAME"/*)
    [ ${#seeds[@]} -gt 0 ] || { echo "FAILED: no tests/seeds/$NAME"; failed=1; finish; }
    build gcc -std=c11 -O1 -g -w -fsanitize=address,undefined -fno-sanitize-recover=all -DFUZZ_REPLAY -DNOVA_NO_VULKAN $TEST \
        "tests/fuzz_$NAME.c" -o "$OUT/replay.$NAME" $LIBS
    check "replay of ${#seeds[@]} seeds" $OUT/replay.$NAME "${seeds[@]}"
    if links clang -fsanitize=fuzzer-no-link,address; then
        build clang -std=c11 -O1 -g -w -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DNOVA_NO_VULKAN $TEST \
            "tests/fuzz_$NAME.c" -o "$OUT/fuzz.$NAME" $LIBS
        mkdir -p "$OUT/fuzz.$NAME.corpus" "$found"
        check "libFuzzer, $seconds s" $OUT/fuzz.$NAME -max_total_time=$seconds -timeout=20 -rss_limit_mb=2048 \
            -verbosity=0 -print_final_stats=1 -artifact_prefix="$found/" $OUT/fuzz.$NAME.corpus "tests/seeds/$NAME"
    else
        skip "libFuzzer: no clang with libclang-rt"
    fi
    finish
}

# A check in Python prints the closing line itself, or its exit status is one check. Programs that it needs, tests/NAME_*.c,
# are built and given to it.
part_check() {
    local log=$OUT/check.$NAME.out rc module source programs=()
    for source in tests/"$NAME"_*.c; do
        [ -e "$source" ] || continue
        programs+=("$OUT/$(basename "$source" .c)")
        build gcc -std=c11 -O1 -w -DNOVA_NO_VULKAN $TEST "$source" -o "${programs[-1]}" $LIBS
    done
    [ "$NAME" != zoo ] || { need_nova; programs=(build/nova); }
    python3 "tests/check_$NAME.py" "${programs[@]}" 2>&1 | tee "$log"
    rc=${PIPESTATUS[0]}
    module=$(sed -n "s/^ModuleNotFoundError: No module named '\(.*\)'/\1/p" "$log")
    [ -z "$module" ] || skip_all "python3 has no module $module"
    closing "$log" >/dev/null && exit "$rc"
    [ "$rc" = 0 ] && passed=1 || failed=1
    finish
}

# ---- Vulkan ----

# Runs a command with a Vulkan driver: "debian" is this system's lavapipe (Mesa on the CPU), others are a lab's.
with_driver() {
    local driver=$1 icd; shift
    if [ "$driver" = debian ]; then
        icd=$(ls /usr/share/vulkan/icd.d/lvp_icd.*json 2>/dev/null | head -n 1)
        VK_DRIVER_FILES=$icd VK_ICD_FILENAMES=$icd "$@"
    else
        "${NOVA_LAB_RUN:-$NOVA_TEST_DATA/lab/run.sh}" "$driver" "$@"
    fi
}
need_driver() {
    [ "$INCLUDE" = "-I. -Ibuild/include" ] || skip_all "no headers of Vulkan (libvulkan-dev)"
    if [ "$1" = debian ]; then
        ls /usr/share/vulkan/icd.d/lvp_icd.*json >/dev/null 2>&1 || skip_all "no Vulkan driver (mesa-vulkan-drivers)"
    else
        with_driver "$1" true 2>/dev/null || skip_all "no lab with the driver $1"
    fi
}
# A validation layer's complaints come on stdout; one is a failure.
VALIDATE='VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LAYER_ENABLES=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT'

part_vulkan() {
    local driver=${1%%,*} name=${1##*,} log=$OUT/vulkan.$1.out rc
    need_driver "$driver"
    flock $OUT/vulkan.$name.lock bash -c "[ $OUT/vulkan.$name -nt nova.c ] && [ $OUT/vulkan.$name -nt tests/test_$name.c ] ||
        gcc -std=c11 -O1 -g -w $TEST $INCLUDE tests/test_$name.c -o $OUT/vulkan.$name $LIBS" || { failed=1; finish; }
    with_driver "$driver" $OUT/vulkan.$name
}
part_validate() {
    local driver=${1%%,*} name=${1##*,} log=$OUT/validate.$1.out
    need_driver "$driver"
    [ "$driver" != debian ] || ls /usr/share/vulkan/explicit_layer.d/*validation* >/dev/null 2>&1 || skip_all "no validation layers"
    build gcc -std=c11 -O1 -g -w $TEST $INCLUDE "tests/test_$name.c" -o "$OUT/validate.$1" $LIBS
    with_driver "$driver" env $VALIDATE NOVA_BRIEF=1 "$OUT/validate.$1" >"$log" 2>&1
    check "the test passes" sh -c "grep -q '[1-9][0-9]* passed, 0 failed' '$log'"
    check "no word from the validation layers" sh -c "! grep -E 'VUID|SYNC-HAZARD|UNASSIGNED|Validation (Error|Warning|Performance)' '$log'"
    [ $failed = 0 ] || tail -n 60 "$log"
    finish
}
part_shaders() { check "the compiled shaders are those of the sources" python3 shaders/build.py --check; finish; }

part_cli() { need_nova; need_model; python3 tests/test_cli.py build/nova "$NOVA_MODEL"; }

# The same files through nova and llama.cpp, where a lab has it.
part_reference() { need_nova; need_model; python3 tests/reference.py; }

# The program in the README, built by the line that stands there.
part_readme() {
    local dir=$OUT/readme line
    rm -rf $dir && mkdir -p $dir && cp nova.c nova.h $dir/
    sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >$dir/app.c
    check "the README has a program of 25 lines at most" sh -c "n=\$(wc -l <$dir/app.c); [ \$n -gt 5 ] && [ \$n -le 25 ]"
    line=$(sed -n 's/^| gcc, clang | `\(.*\)` |$/\1/p' README.md)
    check "it compiles by the README's line" sh -c "cd $dir && $line"
    check "it is silent under strict warnings" gcc $STRICT -I. -fsyntax-only $dir/app.c
    need_model
    check "it runs" sh -c "$dir/app $NOVA_MODEL >$dir/answer"
    check "it answers" grep -q scatter $dir/answer
    finish
}

# ---- check-all only ----

part_clang()  { need_clang; unit clang -std=c11 -O2 -w $TEST; $OUT/clang.$NAME; }
part_cxx()    { have g++ || skip_all "no g++"; unit g++ -x c++ -std=c++17 -O2 -w $TEST; $OUT/cxx.$NAME; }
part_fast()   { unit gcc -std=c11 -O3 -ffast-math -w $TEST; $OUT/fast.$NAME; }   # a host may build everything so
# Here products and sums become one where a function's instruction set has that, whatever nova.c asks for.
part_fastclang() { need_clang; unit clang -std=c11 -O2 -ffast-math -w $TEST; $OUT/fastclang.$NAME; }
part_debug()  { unit gcc -std=c11 -O0 -w $TEST; $OUT/debug.$NAME; }
# The base line is x86-64 of 2003: nothing newer may run before it was asked for.
part_oldcpu() {
    have qemu-x86_64 || skip_all "no qemu-x86_64"
    [ "$(uname -m)" = x86_64 ] || skip_all "not an x86-64 system"
    unit gcc -std=c11 -O2 -w $TEST $EMULATED
    qemu-x86_64 -cpu Opteron_G1 $OUT/oldcpu.$NAME
}
part_seeds() {
    local seed
    unit gcc -std=c11 -O2 -w $TEST
    for seed in 11 22 33 44 55; do check "NOVA_SEED=$seed" env NOVA_SEED=$seed $OUT/seeds.$NAME; done
    finish
}

# ---- The list ----

names() {  # names DIR-PREFIX SUFFIX: what stands between them
    local f
    for f in tests/"$1"*"$2"; do [ ! -e "$f" ] || { f=${f#tests/"$1"}; echo "${f%"$2"}"; }; done
}
parts() {
    local n lang
    echo build; echo join
    for lang in gcc,c11 gcc,c++17 clang,c11 clang,c++17 aarch64-linux-gnu-gcc,c11 x86_64-w64-mingw32-gcc,c11; do
        echo "strict $lang"
    done
    echo symbols; echo embed; echo msvc; echo cli; echo readme; echo batch
    printf 'abroad %s\n' wine arm64 oldcpu
    echo shaders
    for n in $(names test_ .c); do
        is_gpu_test "$n" || continue
        for driver in $DRIVERS; do
            echo "vulkan $driver,$n"
            [ "$RUN_LONG" = 0 ] && [ "$n" != gpu ] || echo "validate $driver,$n"   # each kernel: in check-all
        done
    done
    for n in $(names test_ .c); do
        ! is_gpu_test "$n" || continue
        printf '%s\n' "unit $n" "asan $n" "wine $n" "msvcrun $n" "arm64 $n"
        case " $THREADED " in *" $n "*) echo "tsan $n" ;; esac
        [ "$RUN_LONG" = 0 ] || printf '%s\n' "clang $n" "cxx $n" "fast $n" "fastclang $n" "debug $n" "oldcpu $n" "seeds $n"
    done
    [ "$RUN_LONG" = 0 ] || echo reference
    for n in $(names fuzz_ .c); do echo "fuzz $n"; done
    for n in $(names check_ .py); do echo "check $n"; done
}

# ---- Running them ----

# The closing line of a log as "P F S", or nothing.
closing() {
    tail -n 1 "$1" 2>/dev/null | tr -d '\r' |
        sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' | grep .
}

# Runs one part in a process of its own, notes its counts, and prints its line, whole.
run_one() {
    local id=${1// /.} started rc counts p f s verdict limit=600 why=''
    local log=$OUT/$id.log
    [ "$RUN_LONG" = 0 ] || limit=3600
    started=${EPOCHREALTIME/./}
    timeout -k 10 $limit bash tests/run.sh --inside $1 </dev/null >"$log" 2>&1
    rc=$?
    counts=$(closing "$log")
    read -r p f s <<<"${counts:-0 0 0}"
    if [ $rc = 124 ] || [ $rc = 137 ]; then why="ended after $limit s"
    elif [ -z "$counts" ]; then why="no closing line, exit status $rc"
    elif [ $rc != 0 ] && [ "$f" = 0 ]; then why="exit status $rc"
    elif [ $((p + f + s)) = 0 ]; then why="it checked nothing"
    fi
    [ -z "$why" ] || f=$((f + 1))
    echo "$p $f $s" >"$OUT/$id.result"
    verdict=ok
    [ "$p" != 0 ] || verdict=skip
    [ "$f" = 0 ] || verdict=FAIL
    {
        flock 8
        awk -v v="$verdict" -v t="$((${EPOCHREALTIME/./} - started))" -v name="$1" -v p="$p" -v f="$f" -v s="$s" 'BEGIN {
            printf "%-4s %6.1f s  %-34s %d passed", v, t / 1e6, name, p
            if (f) printf ", %d failed", f
            if (s) printf ", %d skipped", s
            print ""
        }'
        if [ "$f" != 0 ]; then
            [ -z "$why" ] || echo "    $why"
            tail -n 200 "$log" | cut -c 1-400 | sed 's/^/    | /'
        elif [ "$s" != 0 ]; then
            tr -d '\r' <"$log" | sed -n 's/^\(.*: \)\{0,1\}skipped: /    skipped: /p' | sort -u | head -n 5
        fi
    } 8>>"$OUT/print.lock"
}

mkdir -p $OUT
case ${1:-} in
--inside)
    KIND=$2 NAME=${3:-}
    "part_$KIND" "${@:3}"
    exit
    ;;
--one)
    run_one "$2"
    exit
    ;;
esac

only_list=0 patterns=()
for argument; do
    case $argument in
    --all)  export RUN_LONG=1 DRIVERS='debian lavapipe swiftshader' ;;
    --list) only_list=1 ;;
    -*)     sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *)      patterns+=("$argument") ;;
    esac
done
chosen=()
while read -r part; do
    [ ${#patterns[@]} -gt 0 ] || { chosen+=("$part"); continue; }
    for pattern in "${patterns[@]}"; do
        # shellcheck disable=SC2053  # a pattern
        [[ $part == $pattern ]] && { chosen+=("$part"); break; }
    done
done < <(parts)
[ ${#chosen[@]} -gt 0 ] || { echo "run.sh: no part matches ${patterns[*]}" >&2; exit 2; }
[ $only_list = 0 ] || { printf '%s\n' "${chosen[@]}"; exit; }

rm -f $OUT/*.result
printf '%s\0' "${chosen[@]}" | xargs -0 -n 1 -P "$JOBS" bash tests/run.sh --one
read -r p f s n < <(cat $OUT/*.result 2>/dev/null | awk '{ p += $1; f += $2; s += $3; n++ } END { print p + 0, f + 0, s + 0, n + 0 }')
if [ "$n" != ${#chosen[@]} ]; then
    echo "run.sh: ${#chosen[@]} parts, but $n results"
    f=$((f + 1))
fi
echo "$n parts in $SECONDS s"
echo "$p passed, $f failed, $s skipped"
[ "$f" = 0 ]
