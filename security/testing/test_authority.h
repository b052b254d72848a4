// A certificate authority of a test's own, in its temporary folder. Thread-compatible.
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
  std::string Uri(std::string_view path) const;                      // of "node/a"

  // A certificate for "node/a" and its key, in files called so in this authority's folder; one that is asked
  // for again replaces the one before. `good_for` counts from now; less than nothing: it ended then.
  Identity::Files Issue(std::string_view path, absl::Duration good_for = absl::Hours(1)) const;
  // The same, loaded.
  std::shared_ptr<Identity> Load(std::string_view path) const;
  // From now on the identities above refuse this name, and no other.
  void Deny(std::string_view path) const;

 private:
  tensorcast::testing::TempFolder folder_;
  AuthorityFolder authority_;
  std::string denied_;
};

}  // namespace tensorcast::security::testing
