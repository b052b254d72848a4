#include "cli/bench/bench_certificates.h"

#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "security/name.h"

namespace tensorcast::bench {
namespace {

constexpr char kTrustDomain[] = "bench.tensorcast";
constexpr absl::Duration kGoodFor = absl::Hours(24);

security::Validity FromNow() {
  const absl::Time now = absl::Now();
  return {.from = now - absl::Hours(1), .until = now + kGoodFor};
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  TC_RETURN_IF_ERROR(MakePrivateFile(path));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  if (!file.flush()) return ErrnoStatus(errno, "write", path);
  return absl::OkStatus();
}

}  // namespace

BenchCertificates::BenchCertificates(std::string folder, security::CertifiedKey authority)
    : folder_(std::move(folder)), authority_(std::move(authority)) {}

absl::StatusOr<BenchCertificates> BenchCertificates::Make(const std::string& folder) {
  const std::string own = folder + "/certificates";
  TC_RETURN_IF_ERROR(MakePrivateFolder(own, "ca.pem"));
  TC_ASSIGN_OR_RETURN(security::CertifiedKey authority, security::MakeAuthority(kTrustDomain, FromNow()));
  TC_RETURN_IF_ERROR(WriteFile(own + "/ca.pem", authority.certificate));
  return BenchCertificates(own, std::move(authority));
}

absl::StatusOr<security::Identity::Files> BenchCertificates::Issue(std::string_view name) const {
  TC_ASSIGN_OR_RETURN(const security::Name full, security::ParseNameIn(kTrustDomain, name));
  TC_ASSIGN_OR_RETURN(const security::CertifiedKey made,
                      security::IssueCertificate(authority_, full, FromNow()));
  const std::string file = absl::StrCat(folder_, "/", absl::StrReplaceAll(name, {{"/", "-"}}));
  security::Identity::Files files{.ca = folder_ + "/ca.pem",
                                  .certificate = file + ".pem",
                                  .key = file + ".key",
                                  .denied = {},
                                  .trust_domain = {}};
  TC_RETURN_IF_ERROR(WriteFile(files.key, made.key));
  TC_RETURN_IF_ERROR(WriteFile(files.certificate, made.certificate));
  return files;
}

absl::StatusOr<std::vector<std::string>> BenchCertificates::SettingsFor(std::string_view name) const {
  TC_ASSIGN_OR_RETURN(const security::Identity::Files files, Issue(name));
  return std::vector<std::string>{"security.ca=" + files.ca, "security.certificate=" + files.certificate,
                                  "security.key=" + files.key};
}

}  // namespace tensorcast::bench
