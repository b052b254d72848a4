// The entry points of libFuzzer. `<target> --write-seeds DIR` writes the target's seeds and ends.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace {

bool WriteSeeds(const std::string& folder) {
  const std::vector<std::string> seeds = tensorcast::fuzz::Seeds();
  for (size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream out(folder + "/seed-" + std::to_string(i), std::ios::binary);
    out << seeds[i];
    if (!out.flush()) {
      std::fprintf(stderr, "cannot write seeds to %s: make the folder first\n", folder.c_str());
      return false;
    }
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 3 && std::string_view((*argv)[1]) == "--write-seeds") {
    std::exit(WriteSeeds((*argv)[2]) ? 0 : 1);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tensorcast::fuzz::TestOneInput(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
