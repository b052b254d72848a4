// Random changes to an input, in the manner of a fuzzer but without its feedback: enough to keep a target
// honest in builds that have no libFuzzer. Thread-compatible.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcast::fuzz {

class Mutator {
 public:
  // The same seed and seeds, the same mutations.
  Mutator(uint64_t random_seed, std::vector<std::string> seeds)
      : random_(random_seed), seeds_(std::move(seeds)) {}

  // A seed with one to four changes.
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
