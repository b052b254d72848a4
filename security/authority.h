// A certificate authority for trials and tests, which `tensorcast certs` uses. A cluster that has its own
// authority (SPIRE, cert-manager, Vault) does not need this one.
//
// Keys are ECDSA over P-256. Pure values and functions; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "security/name.h"

namespace tensorcast::security {

// A certificate and its key, both in PEM form.
struct CertifiedKey {
  std::string certificate;
  std::string key;  // a secret
};

// The validity of a certificate, in whole seconds of the wall clock.
struct Validity {
  absl::Time from;
  absl::Time until;
};

// Makes a new authority for a trust domain. Each process accepts only names of its own trust domain
// (identity.h). INVALID_ARGUMENT for an invalid trust domain.
absl::StatusOr<CertifiedKey> MakeAuthority(std::string_view trust_domain, const Validity& validity);

// The trust domain in an authority's certificate. INVALID_ARGUMENT if MakeAuthority did not make the
// certificate.
absl::StatusOr<std::string> DomainOfAuthority(std::string_view certificate);

// Issues a certificate for `name` with a new key, valid for both ends of a connection. INVALID_ARGUMENT when
// the authority's certificate and key do not belong together or cannot be read.
absl::StatusOr<CertifiedKey> IssueCertificate(const CertifiedKey& authority, const Name& name,
                                              const Validity& validity);

}  // namespace tensorcast::security
