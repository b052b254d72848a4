// Secures a process's connections to other hosts with mutual TLS. No other code gives certificates to gRPC.
//
// A process without certificates has no Credentials, and its ports and channels are unencrypted. Unix sockets
// are always unencrypted. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "security/identity.h"
#include "security/roles.h"

namespace grpc {
class ChannelCredentials;
class ServerContextBase;
class ServerCredentials;
namespace experimental {
class CertificateProviderInterface;
}  // namespace experimental
}  // namespace grpc

namespace tensorcast::rpc {

class Credentials {
 public:
  // gRPC reads the identity's files, and reads them again when they change. Open connections stay open.
  explicit Credentials(std::shared_ptr<security::Identity> identity);
  ~Credentials();
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;

  const security::Identity& identity() const { return *identity_; }

  // For a channel to a server with one of these roles and, unless `name` is empty, with this name. A
  // connection to any other server fails.
  std::shared_ptr<grpc::ChannelCredentials> ForChannelTo(security::RoleSet servers,
                                                         const std::string& name) const;
  std::shared_ptr<grpc::ServerCredentials> ForServer() const;

  using Certificate = std::shared_ptr<const security::Certificate>;
  // The certificate of a served call's peer; null if the connection does not use TLS. Errors are those of
  // Identity::CheckPeer.
  absl::StatusOr<Certificate> CallerOf(const grpc::ServerContextBase& call) const;

 private:
  absl::StatusOr<Certificate> Described(std::string_view pem) const;

  const std::shared_ptr<security::Identity> identity_;
  const std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
  // A cache of decoded certificates, by PEM text.
  mutable absl::Mutex mutex_;
  mutable std::unordered_map<std::string, Certificate> described_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::rpc
