// The configuration without what grants access, for people other than the owner of the process. Stateless;
// thread-safe.
#pragma once

#include "proto/config.pb.h"

namespace tensorcast::config {

// Values of keys that config.proto declares secret, and users with passwords in addresses, are "(hidden)".
// Paths of files with secrets stay, since the files are not read.
v1::Config WithoutSecrets(v1::Config config);

}  // namespace tensorcast::config
