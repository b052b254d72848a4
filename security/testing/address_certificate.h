// A certificate for a server that is not a process of ours, which its clients know by an address.
#pragma once

#include <string>

#include "security/identity.h"

namespace tensorcast::security::testing {

// Made in `folder`, as server.pem and server.key, for an IP address; good for an hour. It signs itself, so it
// is also the authority that clients know it by.
Identity::Files MakeAddressCertificate(const std::string& folder, const std::string& address);

}  // namespace tensorcast::security::testing
