#include "global_store/service/random_secrets.h"

#include <openssl/rand.h>

#include "absl/log/check.h"
#include "base/request_context.h"

namespace tensorcast::global_store {

std::string RandomSecrets::NewTransportId() { return NewUuid(); }

std::string RandomSecrets::NewGrantKey() {
  std::string key(32, '\0');
  CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(key.data()), static_cast<int>(key.size())), 1)
      << "the operating system gives no random numbers";
  return key;
}

}  // namespace tensorcast::global_store
