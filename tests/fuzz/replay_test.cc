// Keeps a fuzz target from rotting: its seeds and some thousand mutations of them, in every build's test
// suite. By hand any number: TENSORCAST_FUZZ_INPUTS=100000000, and TENSORCAST_FUZZ_SEED for others than the
// usual ones.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutator.h"

namespace tensorcast::fuzz {
namespace {

constexpr uint64_t kRandomSeed = 20240722;
constexpr uint64_t kMutations = TENSORCAST_FUZZ_MUTATIONS;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(FuzzTarget, FuzzTarget_AcceptsEmptyInputAndSeeds) {
  TestOneInput("");
  const std::vector<std::string> seeds = Seeds();
  ASSERT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) TestOneInput(seed);
}

TEST(FuzzTarget, FuzzTarget_AcceptsTruncatedSeeds) {
  for (const std::string& seed : Seeds()) {
    const size_t step = 1 + seed.size() / 512;
    for (size_t size = 0; size < seed.size(); size += step) TestOneInput(seed.substr(0, size));
  }
}

TEST(FuzzTarget, FuzzTarget_AcceptsMutatedSeeds) {
  Mutator mutator(FromEnvironment("TENSORCAST_FUZZ_SEED", kRandomSeed), Seeds());
  const uint64_t inputs = FromEnvironment("TENSORCAST_FUZZ_INPUTS", kMutations);
  for (uint64_t i = 0; i < inputs; ++i) TestOneInput(mutator.Next());
}

}  // namespace
}  // namespace tensorcast::fuzz
