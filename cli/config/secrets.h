// Hides the secrets of a configuration, for people other than the owner of the process. Stateless;
// thread-safe.
#pragma once

#include "proto/config.pb.h"

namespace tensorcast::config {

// Values of keys that config.proto declares secret, and users with passwords in addresses, become "(hidden)".
// Paths of files with secrets are kept, since the files are not read.
v1::Config WithoutSecrets(v1::Config config);

}  // namespace tensorcast::config
