# The two commands (make demo, make test) and the shorter names for the rest. CMake does the work.
PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)

.PHONY: all setup build test demo format clean

all: build

setup:
	@tools/setup.sh

$(BUILD)/build.ninja: CMakePresets.json
	cmake --preset $(PRESET)

build: setup $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS)

test: build
	ctest --test-dir $(BUILD) --output-on-failure -LE gpu -j 2

# MODEL: a .safetensors file or a sharded directory; without it a Llama-shaped model is made.
demo: build
	$(BUILD)/bin/tensorcast demo $(if $(MODEL),--model "$(MODEL)")

format:
	git ls-files '*.cc' '*.h' | xargs clang-format -i

clean:
	rm -rf $(BUILD)

# A relocatable archive and Debian packages, into build/packages.
.PHONY: package
package: build
	tools/package/make_package.sh --build $(BUILD) --out build/packages
