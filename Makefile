# Two commands do everything: `make run` answers a question, `make test` tests. Both install what is missing.
# `make help` lists the rest.

CC      ?= cc
CFLAGS  ?= -O2
LDLIBS   = -lm -lpthread -ldl
MODEL    = models/SmolLM2-135M-Instruct.Q4_1.gguf
N        = 128
PROMPT   = Why is the sky blue? Answer in two sentences.
export PROMPT
MODELS   = $(MODEL)
DEVICE   = gpu

# GPUs need the headers of the Vulkan SDK (Debian: libvulkan-dev) when nova.c is compiled, and nothing when it is linked.
ifeq (,$(shell echo '\#include <vulkan/vulkan_core.h>' | $(CC) -E -x c - >/dev/null 2>&1 && echo yes))
VULKAN   = -DNOVA_NO_VULKAN
endif

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.PHONY: all run test check-all bench gpu-report examples clean help

all: build/nova

build/nova: examples/nova.c $(wildcard examples/*.h) nova.h build/nova.o
	$(CC) $(CFLAGS) -I. -o $@ examples/nova.c build/nova.o $(LDLIBS)

build/nova.o: nova.c nova.h
	@command -v $(CC) >/dev/null || { echo "no C compiler ($(CC)): apt-get install gcc libc6-dev, or: make run" >&2; exit 1; }
	@mkdir -p build
	@[ -z "$(VULKAN)" ] || echo "no Vulkan headers (libvulkan-dev): this build is without GPUs" >&2
	$(CC) $(CFLAGS) $(VULKAN) -c -o $@ nova.c

run:
	@sh tests/setup.sh run "$(MODEL)"
	@$(MAKE) --no-print-directory build/nova "$(MODEL)"
	@build/nova run -m "$(MODEL)" -p "$$PROMPT" -n $(N) --temp 0

models/SmolLM2-135M-Instruct.Q4_1.gguf:
	@python3 examples/get_model.py $@

test:
	@sh tests/setup.sh test
	@bash tests/run.sh

check-all:
	@sh tests/setup.sh test
	@bash tests/run.sh --all

bench: build/nova $(MODEL)
	build/nova bench -m "$(MODEL)" -p 512 -n 128 -r 3

# What a GPU makes of it: tests, speeds and kernels, into build/gpu-report.md. Needs python3, and no network where the
# models are there.
gpu-report: $(filter $(MODEL),$(MODELS))
	@CC="$(CC)" python3 tests/gpu_report.py --device $(DEVICE) $(MODELS)

examples: build/nova build/share

# A program of Vulkan's that shares its device with nova: needs what libvulkan-dev has.
build/share: examples/share.c examples/share_spv.h nova.h build/nova.o
	$(CC) $(CFLAGS) $(VULKAN) -I. -o $@ examples/share.c build/nova.o $(LDLIBS) $(if $(VULKAN),,-lvulkan)

# Only when asked for by name, so that building nova needs no Python.
ifneq (,$(filter nova.c,$(MAKECMDGOALS)))
.PHONY: nova.c
nova.c:
	@mkdir -p build
	python3 src/join.py -o build/joined.c && mv build/joined.c $@
endif

clean:
	rm -rf build

help:
	@echo 'make              builds build/nova, the command line, from examples/nova.c and nova.c'
	@echo 'make run          installs what is missing, builds, fetches a small model once, and answers a question;'
	@echo '                  PROMPT="..." asks another one, N=200 allows a longer answer, MODEL=FILE takes another model'
	@echo 'make test         installs what is missing, builds and runs all tests; the last line counts them'
	@echo 'make check-all    the long versions of the tests'
	@echo 'make bench        speed on the small model'
	@echo 'make gpu-report   tests and measures the GPU: build/gpu-report.md; MODELS="A.gguf B.gguf" and DEVICE=gpu:N choose'
	@echo 'make examples     builds the other examples: build/share renders and runs nova on one Vulkan device'
	@echo 'make nova.c       joins src/ into nova.c again (needs python3)'
	@echo 'make clean        removes build/ (and leaves models/)'
