// What a certificate says, for people and for checks of ours: its name and how long it is valid. Whether it
// is to be believed is TLS's business (identity.h). Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "security/name.h"

struct x509_st;  // OpenSSL's X509

namespace tensorcast::security {

struct Certificate {
  Name name;
  absl::Time not_before;
  absl::Time not_after;
  std::string issuer;         // its common name
  std::string serial_number;  // in hexadecimal digits
};

// INVALID_ARGUMENT unless it has exactly one URI name, which is one of ours.
absl::StatusOr<Certificate> DescribeCertificate(const x509_st& certificate);
// Of the first certificate of a PEM text.
absl::StatusOr<Certificate> ReadCertificate(std::string_view pem);

// The text of a file of certificates, a key or names.
absl::StatusOr<std::string> ReadPemFile(const std::string& path);

// The one URI name that it has. INVALID_ARGUMENT when it has none, or several.
absl::StatusOr<std::string> UriOf(const x509_st& certificate);

// OpenSSL's last errors on this thread, as text; they are forgotten.
std::string TakeOpenSslErrors();

}  // namespace tensorcast::security
