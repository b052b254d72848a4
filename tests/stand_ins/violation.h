// How a stand-in handles an incorrect program. In a header, because a stand-in that is a shared library has
// no other code of the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace tensorcast::stand_ins {

// Ends the process: "<library> stand-in: <what>".
[[noreturn]] inline void Violation(std::string_view library, std::string_view what) {
  fprintf(stderr, "%.*s stand-in: %.*s\n", static_cast<int>(library.size()), library.data(),
          static_cast<int>(what.size()), what.data());
  abort();
}

}  // namespace tensorcast::stand_ins
