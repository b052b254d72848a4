// Keeps a fuzz target from rotting: its seeds and some thousand mutations of them, in every build's test
// suite.
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutator.h"

namespace tensorcast::fuzz {
namespace {

constexpr uint64_t kRandomSeed = 20240722;
constexpr int kMutations = TENSORCAST_FUZZ_MUTATIONS;

TEST(FuzzTarget, HoldsForNothingAndForItsSeeds) {
  TestOneInput("");
  const std::vector<std::string> seeds = Seeds();
  ASSERT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) TestOneInput(seed);
}

TEST(FuzzTarget, HoldsForEveryTruncationOfItsSeeds) {
  for (const std::string& seed : Seeds()) {
    const size_t step = 1 + seed.size() / 512;
    for (size_t size = 0; size < seed.size(); size += step) TestOneInput(seed.substr(0, size));
  }
}

TEST(FuzzTarget, HoldsForRandomMutationsOfItsSeeds) {
  Mutator mutator(kRandomSeed, Seeds());
  for (int i = 0; i < kMutations; ++i) TestOneInput(mutator.Next());
}

}  // namespace
}  // namespace tensorcast::fuzz
