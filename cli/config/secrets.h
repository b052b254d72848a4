// Hides the secrets of a configuration that is shown. Stateless; thread-safe.
#pragma once

#include "proto/config.pb.h"

namespace tensorcast::config {

// Replaces values of keys that config.proto declares secret, and user names and passwords in addresses, by
// "(hidden)". Keeps the paths of files with secrets.
v1::Config WithoutSecrets(v1::Config config);

}  // namespace tensorcast::config
