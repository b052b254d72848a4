// A small certificate authority in a folder, for trying things out: whose certificates are shown and issued
// by hand. A cluster that has an authority of its own uses that.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/posix/state_files.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/output/output.h"
#include "security/authority.h"
#include "security/certificate.h"

namespace tensorcast::cli {
namespace {

constexpr char kAuthorityCertificate[] = "ca.pem";
constexpr char kAuthorityKey[] = "ca.key";
// A clock that is behind must not find a certificate that is not good yet.
constexpr absl::Duration kClockAllowance = absl::Minutes(5);

struct InitFlags {
  std::string folder;
  std::string trust_domain;
  int days = 3650;
};

struct IssueFlags {
  std::string name;
  std::string folder;
  int days = 90;
};

struct ShowFlags {
  std::vector<std::string> files;
};

void AddFlags(Flags& flags, InitFlags& values) {
  flags.Add("--folder", values.folder, "Where ca.pem and ca.key are made", {.required = true});
  flags.Add("--trust-domain", values.trust_domain, "Whose names it is for, such as models.example",
            {.required = true});
  flags.Add("--days", values.days, "How long it is good", {.show_default = true, .least = 1, .most = 36500});
}

void AddFlags(Flags& flags, IssueFlags& values) {
  flags.Add("name", values.name, "global-store, node/NAME, operator/NAME or client/NAME", {.required = true});
  flags.Add("--folder", values.folder, "Where the authority is, and the certificate is to be",
            {.required = true});
  flags.Add("--days", values.days, "How long it is good", {.show_default = true, .least = 1, .most = 3650});
}

void AddFlags(Flags& flags, ShowFlags& values) {
  flags.Add("--file", values.files, "A certificate in PEM form", {.required = true});
}

security::Validity ForDays(int days) {
  const absl::Time now = absl::Now();
  return {.from = now - kClockAllowance, .until = now + days * absl::Hours(24)};
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, "open", path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// Those who read `path` find what was there or all of `text`, never a part.
absl::Status WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  const UniqueFd file(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) return ErrnoStatus(errno, "create", fresh);
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, "write to", fresh);
  }
  if (fsync(file.get()) != 0) return ErrnoStatus(errno, "write to", fresh);
  if (rename(fresh.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, "rename to", path);
  return absl::OkStatus();
}

// The key first: who sees the new certificate finds its key.
absl::Status Write(const security::CertifiedKey& made, const std::string& certificate,
                   const std::string& key) {
  TC_RETURN_IF_ERROR(WriteFile(key, made.key, 0600));
  return WriteFile(certificate, made.certificate, 0644);
}

void PrintJson(const nlohmann::json& json) {
  std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

absl::Status Init(const CommonFlags& common, const InitFlags& flags) {
  const std::string certificate = absl::StrCat(flags.folder, "/", kAuthorityCertificate);
  const std::string key = absl::StrCat(flags.folder, "/", kAuthorityKey);
  std::error_code ignored;
  if (std::filesystem::exists(certificate, ignored) || std::filesystem::exists(key, ignored)) {
    return absl::AlreadyExistsError(absl::StrCat(
        flags.folder,
        " has an authority already, and nobody would believe its certificates after another one took "
        "its place; choose another folder"));
  }
  TC_RETURN_IF_ERROR(MakePrivateFolder(flags.folder, kAuthorityKey));
  TC_ASSIGN_OR_RETURN(const security::CertifiedKey made,
                      security::MakeAuthority(flags.trust_domain, ForDays(flags.days)));
  TC_RETURN_IF_ERROR(Write(made, certificate, key));
  if (common.json) {
    PrintJson({{"ca", certificate}, {"key", key}});
  } else {
    std::printf("made an authority for %s: %s goes to every host as security.ca, %s stays here\n",
                flags.trust_domain.c_str(), certificate.c_str(), key.c_str());
  }
  return absl::OkStatus();
}

absl::Status Issue(const CommonFlags& common, const IssueFlags& flags) {
  security::CertifiedKey authority;
  TC_ASSIGN_OR_RETURN(authority.certificate,
                      ReadFile(absl::StrCat(flags.folder, "/", kAuthorityCertificate)));
  TC_ASSIGN_OR_RETURN(authority.key, ReadFile(absl::StrCat(flags.folder, "/", kAuthorityKey)));
  TC_ASSIGN_OR_RETURN(const std::string domain, security::DomainOfAuthority(authority.certificate));
  TC_ASSIGN_OR_RETURN(const security::Name name, security::ParseNameIn(domain, flags.name));
  TC_ASSIGN_OR_RETURN(const security::CertifiedKey made,
                      security::IssueCertificate(authority, name, ForDays(flags.days)));
  const std::string file = absl::StrCat(flags.folder, "/", absl::StrReplaceAll(flags.name, {{"/", "-"}}));
  TC_RETURN_IF_ERROR(Write(made, file + ".pem", file + ".key"));
  if (common.json) {
    PrintJson({{"name", name.ToString()}, {"certificate", file + ".pem"}, {"key", file + ".key"}});
  } else {
    std::printf("issued %s for %d days: security.certificate is %s.pem, security.key is %s.key\n",
                name.ToString().c_str(), flags.days, file.c_str(), file.c_str());
  }
  return absl::OkStatus();
}

absl::Status Show(const CommonFlags& common, const ShowFlags& flags) {
  nlohmann::json shown = nlohmann::json::array();
  Table table({"name", "from", "until", "issuer", "serial number"});
  for (const std::string& path : flags.files) {
    TC_ASSIGN_OR_RETURN(const std::string pem, ReadFile(path));
    const absl::StatusOr<security::Certificate> certificate = security::ReadCertificate(pem);
    if (!certificate.ok()) return Annotate(certificate.status(), path);
    const auto text = [](absl::Time time) {
      return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone());
    };
    shown.push_back({{"file", path},
                     {"name", certificate->name.ToString()},
                     {"not_before", text(certificate->not_before)},
                     {"not_after", text(certificate->not_after)},
                     {"issuer", certificate->issuer},
                     {"serial_number", certificate->serial_number}});
    table.Add(
        {certificate->name.ToString(), text(certificate->not_before),
         absl::StrCat(text(certificate->not_after), certificate->not_after < absl::Now() ? " (OVER)" : ""),
         certificate->issuer, certificate->serial_number});
  }
  if (common.json) {
    PrintJson(shown);
  } else {
    std::fputs(table.ToString().c_str(), stdout);
  }
  return absl::OkStatus();
}

int RunInit(const CommonFlags& common, const InitFlags& flags) { return ExitCode(Init(common, flags)); }
int RunIssue(const CommonFlags& common, const IssueFlags& flags) { return ExitCode(Issue(common, flags)); }
int RunShow(const CommonFlags& common, const ShowFlags& flags) { return ExitCode(Show(common, flags)); }

}  // namespace

Command CertsCommand() {
  return {.name = "certs",
          .help = "Make certificates for trying things out, and show what is in one",
          .commands = {{.name = "init",
                        .help = "Make a certificate authority in a folder",
                        .role = Role::kSilent,
                        .bind = Bind(AddFlags, RunInit)},
                       {.name = "issue",
                        .help = "Make a certificate and its key; one of the same name takes its place",
                        .role = Role::kSilent,
                        .bind = Bind(AddFlags, RunIssue)},
                       {.name = "show",
                        .help = "Say whose a certificate is, and how long",
                        .role = Role::kSilent,
                        .bind = Bind(AddFlags, RunShow)}}};
}

}  // namespace tensorcast::cli
