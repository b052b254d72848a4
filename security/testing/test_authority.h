// A certificate authority for one test, in a temporary folder. Thread-compatible.
#pragma once

#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "base/testing/temp_folder.h"
#include "security/authority_folder.h"
#include "security/identity.h"

namespace tensorcast::security::testing {

class TestAuthority {
 public:
  explicit TestAuthority(std::string_view trust_domain = "test.example");

  const std::string& trust_domain() const { return authority_.trust_domain(); }
  std::string ca() const { return authority_.files().certificate; }  // a path, as are those below
  std::string Uri(std::string_view path) const;                      // the URI for "node/a"

  // A certificate for "node/a" and its key, in files named so in this authority's folder; a repeated call
  // replaces them. `good_for` counts from now; negative: the certificate ended at that time.
  Identity::Files Issue(std::string_view path, absl::Duration good_for = absl::Hours(1)) const;
  // Issues one and loads it.
  std::shared_ptr<Identity> Load(std::string_view path) const;
  // From now on the identities above refuse this name, and no other.
  void Deny(std::string_view path) const;

 private:
  tensorcast::testing::TempFolder folder_;
  AuthorityFolder authority_;
  std::string denied_;
};

}  // namespace tensorcast::security::testing
