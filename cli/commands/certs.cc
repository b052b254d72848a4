// A small certificate authority in a folder, for trials: certificates are issued and shown by hand. A cluster
// with an authority of its own uses that one.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/commands/command.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "security/authority_folder.h"
#include "security/certificate.h"

namespace tensorcast::cli {
namespace {

struct InitFlags {
  std::string folder;
  std::string trust_domain;
  absl::Duration validity = 3650 * absl::Hours(24);
};

struct IssueFlags {
  std::string name;
  std::string folder;
  absl::Duration validity = 90 * absl::Hours(24);
};

struct ShowFlags {
  std::vector<std::string> files;
};

void AddValidity(Flags& flags, absl::Duration& value, absl::Duration max) {
  flags.Add("--valid-for", value, "Validity of the certificate",
            {.show_default = true, .min = 3600, .max = absl::ToDoubleSeconds(max)});
}

void AddFlags(Flags& flags, InitFlags& values) {
  flags.Add("--folder", values.folder, "Folder in which ca.pem and ca.key are made",
            {.required = true, .path = true});
  flags.Add("--trust-domain", values.trust_domain,
            "Trust domain of the names that the authority signs, such as models.example", {.required = true});
  AddValidity(flags, values.validity, 36500 * absl::Hours(24));
}

void AddFlags(Flags& flags, IssueFlags& values) {
  flags.Add("name", values.name,
            "Role and name in the certificate: global-store, node/NAME, operator/NAME or client/NAME",
            {.required = true});
  flags.Add("--folder", values.folder, "Folder of the authority, to which the certificate is written",
            {.required = true, .path = true});
  AddValidity(flags, values.validity, 3650 * absl::Hours(24));
}

void AddFlags(Flags& flags, ShowFlags& values) {
  flags.Add("--file", values.files, "PEM file of a certificate", {.required = true, .path = true});
}

// The authority's key never leaves its folder: hosts get the authority's certificate and a key of their own.
absl::Status Init(const CommonFlags& common, const InitFlags& flags) {
  TC_ASSIGN_OR_RETURN(
      const security::AuthorityFolder authority,
      security::AuthorityFolder::Make(flags.folder, flags.trust_domain, security::ValidFor(flags.validity)));
  const security::AuthorityFolder::Files files = authority.files();
  return Show(common, {{"ca", files.certificate}, {"key", files.key}},
              absl::StrCat("made an authority for ", flags.trust_domain, "; copy ", files.certificate,
                           " to every host and set security.ca to it; keep ", files.key, " on this host\n"));
}

// The key is made beside the authority's and has to be carried to its host.
absl::Status Issue(const CommonFlags& common, const IssueFlags& flags) {
  TC_ASSIGN_OR_RETURN(const security::AuthorityFolder authority,
                      security::AuthorityFolder::Open(flags.folder));
  TC_ASSIGN_OR_RETURN(const security::AuthorityFolder::Issued issued,
                      authority.Issue(flags.name, security::ValidFor(flags.validity)));
  const auto& [certificate, key] = issued.files;
  const std::string name = issued.name.ToString();
  return Show(
      common, {{"name", name}, {"certificate", certificate}, {"key", key}},
      absl::StrCat("issued ", name, ", valid for ", DurationText(flags.validity),
                   "; set security.certificate to ", certificate, " and security.key to ", key, "\n"));
}

// All files or none: a script must not take the certificates before a broken file for all of them.
absl::Status Show(const CommonFlags& common, const ShowFlags& flags) {
  nlohmann::json shown = nlohmann::json::array();
  Table table({"name", "from", "until", "issuer", "serial number"});
  for (const std::string& path : flags.files) {
    TC_ASSIGN_OR_RETURN(const std::string pem, security::ReadPemFile(path));
    const absl::StatusOr<security::Certificate> certificate = security::ReadCertificate(pem);
    if (!certificate.ok()) return Annotate(certificate.status(), absl::StrCat("read certificate ", path));
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
         absl::StrCat(text(certificate->not_after), certificate->not_after < absl::Now() ? " (EXPIRED)" : ""),
         certificate->issuer, certificate->serial_number});
  }
  return Show(common, shown, table.ToString());
}

}  // namespace

Command CertsCommand() {
  return {.name = "certs",
          .help = "Make certificates for a trial, and show the name and validity of a certificate",
          .commands = {{.name = "init",
                        .help = "Make a certificate authority in a folder",
                        .role = Role::kSilent,
                        .bind = Bind(AddFlags, Init)},
                       {.name = "issue",
                        .help = "Make a certificate and its key, and replace earlier files of that name",
                        .role = Role::kSilent,
                        .bind = Bind(AddFlags, Issue)},
                       {.name = "show",
                        .help = "Show the name and validity of a certificate",
                        .role = Role::kSilent,
                        .bind = Bind(AddFlags, Show)}}};
}

}  // namespace tensorcast::cli
