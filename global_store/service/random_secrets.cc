#include "global_store/service/random_secrets.h"

#include "base/ids.h"

namespace tensorcast::global_store {

std::string RandomSecrets::NewGrantId() { return NewUuid(); }

std::string RandomSecrets::NewGrantKey() {
  std::string key(32, '\0');
  FillRandom(key.data(), key.size());
  return key;
}

}  // namespace tensorcast::global_store
