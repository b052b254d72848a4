#include "security/testing/test_authority.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

namespace tensorcast::security::testing {
namespace {

// By renaming, as those do it who replace certificates: nobody reads half a file.
void Replace(const std::string& path, const std::string& text, mode_t mode) {
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::trunc);
    file << text;
    CHECK(file.flush().good()) << fresh;
  }
  CHECK_EQ(chmod(fresh.c_str(), mode), 0);
  std::filesystem::rename(fresh, path);
}

}  // namespace

TestAuthority::TestAuthority(std::string_view trust_domain)
    : trust_domain_(trust_domain), ca_(folder_.File("ca.pem")) {
  const absl::Time now = absl::Now();
  auto made = MakeAuthority(trust_domain, {.from = now - absl::Hours(48), .until = now + absl::Hours(48)});
  CHECK_OK(made);
  authority_ = *std::move(made);
  Replace(ca_, authority_.certificate, 0644);
  Replace(folder_.File("denied"), "", 0644);
}

std::string TestAuthority::Uri(std::string_view path) const {
  const auto name = ParseNameIn(trust_domain_, path);
  CHECK_OK(name);
  return name->ToString();
}

Identity::Files TestAuthority::Issue(std::string_view path, absl::Duration good_for) const {
  const auto name = ParseNameIn(trust_domain_, path);
  CHECK_OK(name);
  const absl::Time end = absl::Now() + good_for;
  const auto made = IssueCertificate(authority_, *name, {.from = end - absl::Hours(24), .until = end});
  CHECK_OK(made);
  const std::string file = folder_.File(absl::StrReplaceAll(path, {{"/", "-"}}));
  Identity::Files files{.ca = ca_,
                        .certificate = file + ".pem",
                        .key = file + ".key",
                        .denied = folder_.File("denied"),
                        .trust_domain = trust_domain_};
  Replace(files.key, made->key, 0600);
  Replace(files.certificate, made->certificate, 0644);
  return files;
}

std::shared_ptr<Identity> TestAuthority::Load(std::string_view path) const {
  auto identity = Identity::Load(Issue(path), absl::Milliseconds(10));
  CHECK_OK(identity);
  return *std::move(identity);
}

void TestAuthority::Deny(std::string_view path) const {
  Replace(folder_.File("denied"), Uri(path) + "\n", 0644);
}

}  // namespace tensorcast::security::testing
