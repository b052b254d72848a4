// A certificate authority in a folder: ca.pem and ca.key, and a certificate and a key for each issued name.
// For `tensorcast certs`, tests and benchmarks.
//
// Thread-compatible. Only this process's user may read the keys. Errors of file operations are those of
// ErrnoStatus.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "security/authority.h"
#include "security/name.h"

namespace tensorcast::security {

// A validity of this duration. It begins a little before now, since other hosts' clocks may be behind.
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

  // Makes the folder if it is missing, and an authority in it. ALREADY_EXISTS if the folder has an authority.
  static absl::StatusOr<AuthorityFolder> Make(const std::string& folder, std::string_view trust_domain,
                                              const Validity& validity);
  // Opens an existing authority.
  static absl::StatusOr<AuthorityFolder> Open(const std::string& folder);

  const std::string& trust_domain() const { return trust_domain_; }
  Files files() const;  // of the authority itself

  // Issues a certificate for a name such as "node/a", in node-a.pem and node-a.key. Replaces an earlier
  // certificate of that name. A concurrent reader finds a key that is at least as new as its certificate.
  absl::StatusOr<Issued> Issue(std::string_view name, const Validity& validity) const;

 private:
  AuthorityFolder(std::string folder, std::string trust_domain, CertifiedKey authority);
  static Files FilesIn(std::string_view folder, std::string_view stem);

  std::string folder_;
  std::string trust_domain_;
  CertifiedKey authority_;
};

}  // namespace tensorcast::security
