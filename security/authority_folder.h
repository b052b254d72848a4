// A certificate authority in a folder: ca.pem and ca.key, and a certificate and a key for each name that it
// issued. `tensorcast certs` keeps one, and tests and benchmarks make their own.
//
// Thread-compatible. Only this process's user may read its files, except the certificates. Errors of files as
// ErrnoStatus.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "security/authority.h"
#include "security/name.h"

namespace tensorcast::security {

// Valid for this long, from a little before now, since other clocks may be behind.
Validity ValidFor(absl::Duration duration);

class AuthorityFolder {
 public:
  // The paths of a certificate and its key, in PEM form.
  struct Files {
    std::string certificate;
    std::string key;
  };
  struct Issued {
    Name name;
    Files files;
  };

  // Makes the folder if it is missing, and an authority in it. ALREADY_EXISTS if there is one: no process
  // would accept its certificates any more.
  static absl::StatusOr<AuthorityFolder> Make(const std::string& folder, std::string_view trust_domain,
                                              const Validity& validity);
  // Opens an existing authority.
  static absl::StatusOr<AuthorityFolder> Open(const std::string& folder);

  const std::string& trust_domain() const { return trust_domain_; }
  Files files() const;  // of the authority itself

  // Issues a certificate for "node/a", in node-a.pem and node-a.key; replaces one with the same name. A
  // concurrent reader finds a key that is at least as new as its certificate.
  absl::StatusOr<Issued> Issue(std::string_view name, const Validity& validity) const;

 private:
  AuthorityFolder(std::string folder, std::string trust_domain, CertifiedKey authority);
  static Files FilesIn(std::string_view folder, std::string_view stem);

  std::string folder_;
  std::string trust_domain_;
  CertifiedKey authority_;
};

}  // namespace tensorcast::security
