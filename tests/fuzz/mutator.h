// Random changes of an input, as a fuzzer makes them, but without its feedback: enough to exercise a target
// in builds without libFuzzer. Thread-compatible.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcast::fuzz {

class Mutator {
 public:
  // Equal arguments give equal mutations.
  Mutator(uint64_t random_seed, std::vector<std::string> seeds)
      : random_(random_seed), seeds_(std::move(seeds)) {}

  // Returns a seed with one to four changes.
  std::string Next();

 private:
  size_t Below(size_t end) { return end == 0 ? 0 : random_() % end; }
  void Change(std::string& bytes);
  void OverwriteWithBoundary(std::string& bytes);
  void CopyWithin(std::string& bytes);
  void Splice(std::string& bytes);

  std::mt19937_64 random_;
  const std::vector<std::string> seeds_;
};

}  // namespace tensorcast::fuzz
