// A certificate authority that lives in a folder: ca.pem and ca.key, and beside them a certificate and a key
// for each name that it was asked for. What `tensorcast certs` keeps, and tests and benchmarks make for
// themselves.
//
// Thread-compatible. Its files are for this process's user alone, but for the certificates. Errors of files
// as ErrnoStatus.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "security/authority.h"
#include "security/name.h"

namespace tensorcast::security {

// Good from a little before now, for clocks that are behind, for so long.
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

  // Makes the folder, where there is none, and an authority in it. ALREADY_EXISTS where one is there: no
  // process would accept its certificates any more.
  static absl::StatusOr<AuthorityFolder> Make(const std::string& folder, std::string_view trust_domain,
                                              const Validity& validity);
  // The one that is there.
  static absl::StatusOr<AuthorityFolder> Open(const std::string& folder);

  const std::string& trust_domain() const { return trust_domain_; }
  Files files() const;  // of the authority itself

  // A certificate for "node/a", in node-a.pem and node-a.key; one of the same name is replaced. A reader
  // meanwhile finds a key that is at least as new as its certificate.
  absl::StatusOr<Issued> Issue(std::string_view name, const Validity& validity) const;

 private:
  AuthorityFolder(std::string folder, std::string trust_domain, CertifiedKey authority);
  static Files FilesIn(std::string_view folder, std::string_view stem);

  std::string folder_;
  std::string trust_domain_;
  CertifiedKey authority_;
};

}  // namespace tensorcast::security
