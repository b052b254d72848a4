// Grant ids and grant keys from the operating system's random numbers. Thread-safe.
#pragma once

#include "global_store/directory/directory.h"

namespace tensorcast::global_store {

class RandomSecrets final : public Secrets {
 public:
  std::string NewGrantId() override;
  std::string NewGrantKey() override;
};

}  // namespace tensorcast::global_store
