#include "security/testing/test_authority.h"

#include "absl/log/check.h"
#include "absl/time/clock.h"
#include "base/posix/state_files.h"

namespace tensorcast::security::testing {
namespace {

AuthorityFolder MakeIn(const std::string& folder, std::string_view trust_domain) {
  const absl::Time now = absl::Now();
  auto made = AuthorityFolder::Make(folder, trust_domain,
                                    {.from = now - absl::Hours(48), .until = now + absl::Hours(48)});
  CHECK_OK(made);
  return *std::move(made);
}

}  // namespace

TestAuthority::TestAuthority(std::string_view trust_domain)
    : authority_(MakeIn(folder_.File("authority"), trust_domain)), denied_(folder_.File("denied")) {
  CHECK_OK(ReplaceFile(denied_, "", 0644));
}

std::string TestAuthority::Uri(std::string_view path) const {
  const auto name = ParseNameIn(trust_domain(), path);
  CHECK_OK(name);
  return name->ToString();
}

Identity::Files TestAuthority::Issue(std::string_view path, absl::Duration good_for) const {
  const absl::Time end = absl::Now() + good_for;
  const auto issued = authority_.Issue(path, {.from = end - absl::Hours(24), .until = end});
  CHECK_OK(issued);
  return {.ca = ca(),
          .certificate = issued->files.certificate,
          .key = issued->files.key,
          .denied = denied_,
          .trust_domain = trust_domain()};
}

std::shared_ptr<Identity> TestAuthority::Load(std::string_view path) const {
  auto identity = Identity::Load(Issue(path), absl::Milliseconds(10));
  CHECK_OK(identity);
  return *std::move(identity);
}

void TestAuthority::Deny(std::string_view path) const {
  CHECK_OK(ReplaceFile(denied_, Uri(path) + "\n", 0644));
}

}  // namespace tensorcast::security::testing
