// The parts of a certificate that people and checks need: its name and its validity. TLS decides whether the
// certificate is trusted (identity.h). Stateless; thread-safe.
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
  std::string issuer;         // the issuer's common name
  std::string serial_number;  // in hexadecimal digits
};

// INVALID_ARGUMENT unless the certificate has exactly one URI name, in the form of name.h.
absl::StatusOr<Certificate> DescribeCertificate(const x509_st& certificate);
// As DescribeCertificate, for the first certificate of a PEM text.
absl::StatusOr<Certificate> ReadCertificate(std::string_view pem);

// The text of a PEM file or a file of names. INVALID_ARGUMENT above 4 MiB; other errors as ErrnoStatus.
absl::StatusOr<std::string> ReadPemFile(const std::string& path);

// The certificate's URI name. INVALID_ARGUMENT when it has none, or several.
absl::StatusOr<std::string> UriOf(const x509_st& certificate);

// OpenSSL's last errors on this thread, as text; clears them.
std::string TakeOpenSslErrors();

}  // namespace tensorcast::security
