#include "security/authority_folder.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "security/certificate.h"

namespace tensorcast::security {
namespace {

constexpr char kAuthority[] = "ca";
// A certificate begins so much earlier, for hosts with clocks behind the authority's.
constexpr absl::Duration kClockAllowance = absl::Minutes(5);

// The key first, so that a certificate is never there without the key that belongs to it. Only its owner
// reads the key.
absl::Status Write(const CertifiedKey& made, const AuthorityFolder::Files& files) {
  TC_RETURN_IF_ERROR(ReplaceFile(files.key, made.key, 0600));
  return ReplaceFile(files.certificate, made.certificate, 0644);
}

}  // namespace

Validity ValidFor(absl::Duration duration) {
  const absl::Time now = absl::Now();
  return {.from = now - kClockAllowance, .until = now + duration};
}

AuthorityFolder::AuthorityFolder(std::string folder, std::string trust_domain, CertifiedKey authority)
    : folder_(std::move(folder)), trust_domain_(std::move(trust_domain)), authority_(std::move(authority)) {}

absl::StatusOr<AuthorityFolder> AuthorityFolder::Make(const std::string& folder,
                                                      std::string_view trust_domain,
                                                      const Validity& validity) {
  const Files files = FilesIn(folder, kAuthority);
  std::error_code ignored;
  // Either file counts: one alone may be the rest of an authority that is in use.
  if (std::filesystem::exists(files.certificate, ignored) || std::filesystem::exists(files.key, ignored)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "make an authority in ", folder,
        ": the folder has an authority already, and a new authority would make the certificates of "
        "the existing authority invalid; choose another folder"));
  }
  TC_RETURN_IF_ERROR(MakePrivateFolder(folder, std::filesystem::path(files.key).filename().string()));
  TC_ASSIGN_OR_RETURN(CertifiedKey made, MakeAuthority(trust_domain, validity));
  TC_RETURN_IF_ERROR(Write(made, files));
  return AuthorityFolder(folder, std::string(trust_domain), std::move(made));
}

absl::StatusOr<AuthorityFolder> AuthorityFolder::Open(const std::string& folder) {
  const Files files = FilesIn(folder, kAuthority);
  CertifiedKey authority;
  TC_ASSIGN_OR_RETURN(authority.certificate, ReadPemFile(files.certificate));
  TC_ASSIGN_OR_RETURN(authority.key, ReadPemFile(files.key));
  // Whether the two belong together is checked when a certificate is issued.
  absl::StatusOr<std::string> trust_domain = DomainOfAuthority(authority.certificate);
  if (!trust_domain.ok()) return Annotate(trust_domain.status(), absl::StrCat("open ", files.certificate));
  return AuthorityFolder(folder, *std::move(trust_domain), std::move(authority));
}

AuthorityFolder::Files AuthorityFolder::files() const { return FilesIn(folder_, kAuthority); }

absl::StatusOr<AuthorityFolder::Issued> AuthorityFolder::Issue(std::string_view name,
                                                               const Validity& validity) const {
  TC_ASSIGN_OR_RETURN(Name full, ParseNameIn(trust_domain_, name));
  TC_ASSIGN_OR_RETURN(const CertifiedKey made, IssueCertificate(authority_, full, validity));
  // node/a is node-a.pem and node-a.key.
  Issued issued{.name = std::move(full), .files = FilesIn(folder_, absl::StrReplaceAll(name, {{"/", "-"}}))};
  TC_RETURN_IF_ERROR(Write(made, issued.files));
  return issued;
}

AuthorityFolder::Files AuthorityFolder::FilesIn(std::string_view folder, std::string_view stem) {
  return {.certificate = absl::StrCat(folder, "/", stem, ".pem"),
          .key = absl::StrCat(folder, "/", stem, ".key")};
}

}  // namespace tensorcast::security
