#include "rpc/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/log.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_context.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {
namespace {

namespace tls = grpc::experimental;

// Lines of gRPC's own go to our log. One would come with each handshake: gRPC looks for the host's name in
// the certificate, but names here are of roles and nodes. Peers could fill a disk with others.
void TakeLogLine(gpr_log_func_args* line) {
  constexpr std::string_view kNoHostName = "No match found for server name";
  const std::string_view text = line->message;
  if (text.find(kNoHostName) != std::string_view::npos) return;
  if (text.find("Handshake failed") != std::string_view::npos) {
    LOG_EVERY_N_SEC(WARNING, 1) << "TLS handshake with a peer: " << text << "; check the peer's certificate";
    return;
  }
  LOG(LEVEL(line->severity == GPR_LOG_SEVERITY_ERROR ? absl::LogSeverity::kError : absl::LogSeverity::kInfo))
          .AtLocation(line->file, line->line)
      << text;
}

constexpr unsigned int kLookSeconds = 1;  // for files that changed
constexpr size_t kMaxDescribed = 16384;   // certificates, of peers that come again

// What gRPC asks once it has verified a peer's chain.
class NameVerifier final : public tls::ExternalCertificateVerifier {
 public:
  // `name` empty: every name of these roles.
  NameVerifier(std::shared_ptr<security::Identity> identity, security::RoleSet wanted, std::string name)
      : identity_(std::move(identity)), wanted_(wanted), name_(std::move(name)) {}

  // Runs on a gRPC thread during the handshake, after OpenSSL has verified the chain up to security.ca. The
  // checks read what is in memory, so they answer at once and `callback` is never used.
  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)> /*callback*/,
              grpc::Status* outcome) override {
    const absl::Status checked = Check(*request);
    *outcome = ToGrpcStatus(checked);
    LOG_IF_EVERY_N_SEC(WARNING, !checked.ok(), 1) << "TLS handshake: refuse a peer: " << checked.message();
    return true;  // done at once
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  absl::Status Check(const tls::TlsCustomVerificationCheckRequest& request) const {
    const grpc::string_ref pem = request.peer_cert();
    const grpc::string_ref target = request.target_name();
    const std::string operation = absl::StrCat("connect to ", std::string_view(target.data(), target.size()));
    const absl::StatusOr<security::Certificate> peer =
        security::ReadCertificate(std::string_view(pem.data(), pem.size()));
    if (!peer.ok()) return Annotate(peer.status(), operation);
    TC_RETURN_IF_ERROR(identity_->CheckPeer(*peer));
    const bool named = name_.empty() || peer->name.name == name_;
    if (security::Contains(wanted_, peer->name.role) && named) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        operation, ": the server's certificate names ", peer->name.ToString(), ", and this process expects ",
        security::RolesText(wanted_), name_.empty() ? "" : "/", name_, "; check the address"));
  }

  const std::shared_ptr<security::Identity> identity_;
  const security::RoleSet wanted_;
  const std::string name_;
};

std::shared_ptr<tls::CertificateVerifier> Verifier(const std::shared_ptr<security::Identity>& identity,
                                                   security::RoleSet wanted, const std::string& name) {
  return tls::ExternalCertificateVerifier::Create<NameVerifier>(identity, wanted, name);
}

}  // namespace

Credentials::Credentials(std::shared_ptr<security::Identity> identity)
    : identity_(std::move(identity)),
      // gRPC looks at the files itself, so that certificates are replaced without a restart.
      provider_(std::make_shared<tls::FileWatcherCertificateProvider>(
          identity_->files().key, identity_->files().certificate, identity_->files().ca, kLookSeconds)) {}

Credentials::~Credentials() = default;

std::shared_ptr<grpc::ChannelCredentials> Credentials::ForChannelTo(security::RoleSet servers,
                                                                    const std::string& name) const {
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(Verifier(identity_, servers, name));
  options.set_check_call_host(false);  // names are roles' and nodes', not hosts'
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> Credentials::ForServer() const {
  gpr_set_log_function(TakeLogLine);  // of the whole process, which is a server's
  tls::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.set_certificate_verifier(Verifier(identity_, security::kEveryRole, ""));
  return tls::TlsServerCredentials(options);
}

// Checked again for each call: a connection may outlive its peer's certificate, or the denial of its name.
absl::StatusOr<Credentials::Certificate> Credentials::CallerOf(const grpc::ServerContextBase& call) const {
  const std::shared_ptr<const grpc::AuthContext> connection = call.auth_context();
  if (connection == nullptr) return nullptr;
  const std::vector<grpc::string_ref> pem = connection->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (pem.empty()) return nullptr;
  TC_ASSIGN_OR_RETURN(Certificate certificate, Described(std::string_view(pem[0].data(), pem[0].size())));
  TC_RETURN_IF_ERROR(identity_->CheckPeer(*certificate));
  return certificate;
}

absl::StatusOr<Credentials::Certificate> Credentials::Described(std::string_view pem) const {
  const std::string key(pem);
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (const auto known = described_.find(key); known != described_.end()) return known->second;
  }
  absl::StatusOr<security::Certificate> certificate = security::ReadCertificate(pem);
  if (!certificate.ok()) return Annotate(certificate.status(), "read the certificate of a peer");
  auto described = std::make_shared<const security::Certificate>(*std::move(certificate));
  absl::MutexLock lock(&mutex_);
  // Certificates that were replaced stay behind; those that are still used come back with their next call.
  if (described_.size() >= kMaxDescribed) described_.clear();
  described_.emplace(key, described);
  return described;
}

}  // namespace tensorcast::rpc
