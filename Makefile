# The two commands (make demo, make test) and the shorter names for the rest. CMake does the work.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)

.PHONY: all setup build test demo format clean asan tsan tsa tidy lint fuzz check-all

all: build

setup:
	@tools/setup.sh

$(BUILD)/build.ninja: CMakePresets.json
	cmake --preset $(PRESET)

build: setup $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS)

# A test of real processes can be starved by whatever else the machine runs: it gets a second try, and CTest shows both.
test: build
	ctest --test-dir $(BUILD) --output-on-failure -LE gpu -j 2 --repeat until-pass:2

# MODEL: a .safetensors file or a sharded directory; without it a Llama-shaped model is made.
demo: build
	$(BUILD)/bin/tensorcast demo $(if $(MODEL),--model "$(MODEL)")

# Tests that look at the tree or at whole packages and not at our code's behaviour: once is enough.
NOT_SANITIZED := ^(check_|lint_|package_|benchmarks_)

# $(call sanitized,PRESET,SANITIZER,TIERS): builds those tiers' tests with an instrumented Abseil and runs them.
define sanitized
	@tools/setup.sh --sanitizer $(2)
	@cmake --preset $(1)
	@cmake --build build/$(1) -j $(JOBS) --target $(addprefix tests_,$(3))
	ctest --test-dir build/$(1) --output-on-failure -j 2 -LE gpu -E '$(NOT_SANITIZED)' \
	  -L '^($(subst $() ,|,$(strip $(3))))$$'
endef

# AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer.
asan: export UBSAN_OPTIONS := print_stacktrace=1
asan: export LSAN_OPTIONS := suppressions=$(CURDIR)/tools/lint/lsan.supp:print_suppressions=0
asan:
	$(call sanitized,asan,address,unit contract integration)

# ThreadSanitizer, on every unit and contract test that links neither gRPC nor UCX.
tsan: export TSAN_OPTIONS := halt_on_error=1 second_deadlock_stack=1
tsan:
	$(call sanitized,tsan,thread,tsan)

# clang's thread-safety analysis of the whole tree, as errors.
tsa:
	@tools/setup.sh --analysis
	@cmake --preset tsa
	@cmake --build build/tsa -j $(JOBS) -- -k 0

# clang-tidy (.clang-tidy) over FILES, a regular expression of paths; all of the tree takes hours on two cores.
FILES ?= ^$(CURDIR)/(core|transport|otel/api)/.*[.]cc$$
tidy:
	@tools/setup.sh --analysis
	@cmake --preset tsa
	@cmake --build build/tsa -j $(JOBS) --target tensorcast_proto
	run-clang-tidy -quiet -p build/tsa -j $(JOBS) '$(FILES)'

# Includes, formatting, shell scripts.
lint:
	@tools/setup.sh --analysis
	@for check in check_includes check_format check_shell lint_test; do python3 -B tools/lint/$$check.py || exit 1; done

# libFuzzer on every decoder, FUZZ_SECONDS each. What it finds is kept in build/fuzz/corpus, crashes in build/fuzz.
FUZZ_SECONDS ?= 60
fuzz:
	@tools/setup.sh --analysis
	@tools/setup.sh --sanitizer address
	@cmake --preset fuzz
	@cmake --build build/fuzz -j $(JOBS) --target fuzz_targets
	tests/fuzz/run.sh build/fuzz $(FUZZ_SECONDS) $(JOBS)

# All that checks the code and needs more time than a test run has.
check-all: lint test tsa tsan asan fuzz

format:
	git ls-files '*.cc' '*.h' | xargs clang-format -i

clean:
	rm -rf $(BUILD)

# A relocatable archive and Debian packages, into build/packages.
.PHONY: package
package: build
	tools/package/make_package.sh --build $(BUILD) --out build/packages
