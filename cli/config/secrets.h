// Hides the secrets of a configuration from people other than the owner of the process. Stateless;
// thread-safe.
#pragma once

#include "proto/config.pb.h"

namespace tensorcast::config {

// Replaces values of keys that config.proto declares secret, and users with passwords in addresses, by
// "(hidden)". Keeps the paths of files with secrets, since the files are not read.
v1::Config WithoutSecrets(v1::Config config);

}  // namespace tensorcast::config
