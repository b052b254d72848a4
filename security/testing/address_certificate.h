// A certificate for a server that is not ours, and that its clients know by an address.
#pragma once

#include <string>

#include "security/identity.h"

namespace tensorcast::security::testing {

// Makes the certificate in `folder`, as server.pem and server.key, for an IP address; valid for an hour. It
// is self-signed, so it is also the authority for its clients.
Identity::Files MakeAddressCertificate(const std::string& folder, const std::string& address);

}  // namespace tensorcast::security::testing
