// The security of a server: its identity, the peers that it trusts, and whether TCP ports may be unencrypted.
// Read from the section `security` of the configuration.
//
// Thread-compatible.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/config_reader.h"
#include "rpc/credentials.h"
#include "security/key_rules.h"

namespace tensorcast::rpc {

// An address host:port that a server listens on, and the configuration key that sets it.
struct ListenEndpoint {
  std::string_view key;
  std::string listen;
  bool advertised = false;  // the operator configured another address for peers
};

struct SecurityOptions {
  security::Identity::Files files;                     // all empty: host:port is unencrypted
  std::shared_ptr<const Credentials> credentials;      // made from the files; null: no files, or they cannot
                                                       // be loaded
  bool insecure = false;                               // TCP ports may be unencrypted
  security::KeyRules key_rules;                        // which callers may bind which keys
  security::RoleSet own_roles = security::kEveryRole;  // roles that this server's certificate may have

  // Loads the certificates.
  void FromConfig(ConfigReader& config);
  void Validate(std::span<const ListenEndpoint> endpoints, Findings& findings) const;
  // Logs how connections by host:port are secured.
  void Log() const;

 private:
  bool certified() const { return !files.ca.empty() || !files.certificate.empty() || !files.key.empty(); }
};

}  // namespace tensorcast::rpc
