#include "rpc/security_options.h"

#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"

namespace tensorcast::rpc {
namespace {

constexpr char kNeedsCertificates[] =
    ", and no certificates are set; set security.ca, security.certificate and security.key";

}  // namespace

void SecurityOptions::FromConfig(ConfigReader& config) {
  config.Read("security.ca", files.ca);
  config.Read("security.certificate", files.certificate);
  config.Read("security.key", files.key);
  config.Read("security.denied", files.denied);
  config.Read("security.trust_domain", files.trust_domain);
  config.Read("security.insecure", insecure);
  std::vector<std::string> rules;
  config.Read("security.keys", rules);
  absl::StatusOr<security::KeyRules> parsed = security::KeyRules::Parse(rules);
  config.findings().Add("security.keys", parsed.status());
  if (parsed.ok()) key_rules = *std::move(parsed);
  if (!certified()) return;
  // The files are read now, so that damaged ones are found before anything listens.
  absl::StatusOr<std::shared_ptr<security::Identity>> identity = security::Identity::Load(files);
  config.findings().Add("security", identity.status());
  if (identity.ok()) credentials = std::make_shared<const Credentials>(*std::move(identity));
}

void SecurityOptions::Validate(std::span<const ListenEndpoint> endpoints, Findings& findings) const {
  if (credentials != nullptr) {
    const security::Name& self = credentials->identity().self().name;
    if (!security::Contains(own_roles, self.role)) {
      findings.Add(
          "security.certificate",
          absl::StrCat("\"", files.certificate, "\" names ", self.ToString(),
                       "; the certificate of a global store must name global-store, and the certificate of "
                       "a daemon must name node/NAME; make a certificate with `tensorcast certs issue`"));
    }
  }
  if (certified()) {
    if (insecure) {
      findings.Add(
          "security.insecure",
          "this key has no effect: certificates are set, so every port uses TLS; remove this key, or the "
          "certificates");
    }
    return;
  }
  // A setting about certificates protects nothing without them, though it looks as if it did.
  for (const auto& [key, value] :
       {std::pair<std::string_view, std::string_view>{"security.denied", files.denied},
        {"security.trust_domain", files.trust_domain}}) {
    if (value.empty()) continue;
    findings.Add(key, absl::StrCat("\"", value, "\" is about certificates", kNeedsCertificates));
  }
  if (!key_rules.empty()) {
    findings.Add("security.keys", absl::StrCat("the rules are about certificates", kNeedsCertificates));
  }
  // TCP in clear is served only where the configuration says that this is meant.
  if (insecure) return;
  for (const ListenEndpoint& endpoint : endpoints) {
    const absl::StatusOr<HostPort> address = ParseHostPort(endpoint.listen);
    if (!address.ok()) continue;  // where the address is checked this is told
    findings.Add(endpoint.key, absl::StrCat("\"", endpoint.listen, "\" has no certificates, so ",
                                            IsLoopback(*address) ? "every user of this host"
                                                                 : "every process that reaches this port",
                                            " may read, write and delete everything; set security.ca, "
                                            "security.certificate and security.key, use unix sockets, or set "
                                            "security.insecure: true if you trust them all"));
  }
}

void SecurityOptions::Log() const {
  LOG_IF(INFO, credentials != nullptr) << "connections by host:port use mutual TLS; this process is "
                                       << credentials->identity().self().name.ToString();
  LOG_IF(WARNING, insecure)
      << "security.insecure: TCP connections are in clear, and every process that reaches a port of this "
         "process may read, write and delete everything; set security.ca, security.certificate and "
         "security.key "
         "instead";
}

}  // namespace tensorcast::rpc
