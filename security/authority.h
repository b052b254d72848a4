// A certificate authority in two files, for trying things out and for tests: what `tensorcast certs` runs. A
// cluster that has an authority of its own (SPIRE, cert-manager, Vault) uses that.
//
// Keys are ECDSA over P-256. Thread-safe; a value.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "security/name.h"

namespace tensorcast::security {

// Both in PEM form.
struct CertifiedKey {
  std::string certificate;
  std::string key;  // a secret
};

// When a certificate is good; both are whole seconds of the wall clock.
struct Validity {
  absl::Time from;
  absl::Time until;
};

// A new authority, named after a trust domain. Each process takes names of its own domain alone (identity.h).
// INVALID_ARGUMENT for what is not a trust domain.
absl::StatusOr<CertifiedKey> MakeAuthority(std::string_view trust_domain, const Validity& validity);

// The trust domain in an authority's certificate. INVALID_ARGUMENT for one that MakeAuthority did not make.
absl::StatusOr<std::string> DomainOfAuthority(std::string_view certificate);

// A certificate for `name` with a new key, good for both ends of a connection. INVALID_ARGUMENT when the
// authority's certificate and key do not belong together or cannot be read.
absl::StatusOr<CertifiedKey> IssueCertificate(const CertifiedKey& authority, const Name& name,
                                              const Validity& validity);

}  // namespace tensorcast::security
