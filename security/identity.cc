#include "security/identity.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/task_loop.h"

namespace tensorcast::security {
namespace {

constexpr int kLastPart = 10;  // of a certificate's time: not replaced by then, it may have been forgotten

// Names that are refused. All contexts share them, also the contexts of old connections, so that a name that
// is added later holds for these, too.
class DeniedNames {
 public:
  bool Contains(const std::string& name) const {
    absl::ReaderMutexLock lock(&mutex_);
    return names_.contains(name);
  }
  void Set(std::set<std::string, std::less<>> names) {
    absl::MutexLock lock(&mutex_);
    names_ = std::move(names);
  }

 private:
  mutable absl::Mutex mutex_;
  std::set<std::string, std::less<>> names_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::set<std::string, std::less<>>> ReadDenied(const std::string& path) {
  std::set<std::string, std::less<>> names;
  if (path.empty()) return names;
  TC_ASSIGN_OR_RETURN(const std::string text, ReadPemFile(path));
  int number = 0;
  for (std::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    // A line that is not a name is an error: passing over it would let in what it was to refuse.
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::StatusOr<Name> name = ParseName(line);
    if (!name.ok()) {
      return Annotate(name.status(), absl::StrCat("load ", path, ":", number, " (security.denied)"));
    }
    names.insert(name->ToString());
  }
  return names;
}

// Which peers a process accepts.
struct Admission {
  std::string trust_domain;
  DeniedNames denied;

  absl::Status Check(const Name& peer) const {
    const std::string name = peer.ToString();
    if (peer.trust_domain != trust_domain) {
      return absl::PermissionDeniedError(
          absl::StrCat("accept ", name, ": the name is not in the trust domain ", trust_domain,
                       "; let the authority of that domain issue the peer's certificate"));
    }
    if (denied.Contains(name)) {
      return absl::PermissionDeniedError(
          absl::StrCat("accept ", name,
                       ": security.denied of this process lists the name; remove the name there, or issue a "
                       "certificate with another name"));
    }
    return absl::OkStatus();
  }
};
using SharedAdmission = std::shared_ptr<const Admission>;

// A context outlives the Identity through its connections, and VerifyCallback asks the admission from the
// context. So each context owns a share of the admission, under this index of its extra data. OpenSSL frees
// the share with the context.
int AdmissionIndex() {
  static const int index = SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* admission, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<SharedAdmission*>(admission);
      });
  return index;
}

// OpenSSL calls this during a handshake, on its thread, for each certificate of the chain. `verified` is
// OpenSSL's own verdict on the signature and the time. The peer's own certificate is at depth 0: its name is
// checked here, so that a peer with a wrong name does not get through the handshake.
int VerifyCallback(int verified, X509_STORE_CTX* chain) {
  if (verified != 1 || X509_STORE_CTX_get_error_depth(chain) != 0) return verified;
  const auto* connection =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const auto* admission =
      static_cast<SharedAdmission*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(connection), AdmissionIndex()));
  const absl::StatusOr<Certificate> peer = DescribeCertificate(*X509_STORE_CTX_get_current_cert(chain));
  const absl::Status admitted = peer.ok() ? (*admission)->Check(peer->name) : peer.status();
  if (admitted.ok()) return 1;
  LOG_EVERY_N_SEC(WARNING, 1) << "TLS handshake: " << admitted.message();
  X509_STORE_CTX_set_error(chain, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

absl::Status Unusable(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("load ", path, ": OpenSSL found no ", what, " in the file (", TakeOpenSslErrors(),
                   "); make the file with `tensorcast certs`, or name another file"));
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const SSL_METHOD* method, const Identity::Files& files,
                                                     const SharedAdmission& admission) {
  // OpenSSL resumes a session only in a context with the session's id; with client certificates it insists
  // on one.
  static constexpr std::array<unsigned char, 10> kSessions = {'t', 'e', 'n', 's', 'o',
                                                              'r', 'c', 'a', 's', 't'};
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(method), SSL_CTX_free);
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_session_id_context(context.get(), kSessions.data(), kSessions.size()) != 1) {
    return absl::InternalError(absl::StrCat("make a TLS context: OpenSSL offers no TLS 1.3 (",
                                            TakeOpenSslErrors(), "); install OpenSSL 3"));
  }
  auto shared = std::make_unique<SharedAdmission>(admission);
  if (SSL_CTX_set_ex_data(context.get(), AdmissionIndex(), shared.get()) != 1) {
    return absl::ResourceExhaustedError(
        "make a TLS context: memory is exhausted; give this process more memory");
  }
  static_cast<void>(shared.release());  // the context's now
  if (SSL_CTX_load_verify_file(context.get(), files.ca.c_str()) != 1) {
    return Unusable(files.ca, "certificate of an authority in PEM form for security.ca");
  }
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1) {
    return Unusable(files.certificate, "certificate in PEM form for security.certificate");
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return Unusable(files.key,
                    absl::StrCat("key in PEM form for security.key that belongs to the certificate in ",
                                 files.certificate));
  }
  // Both ends show a certificate, so a server asks for one and refuses a client without.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, VerifyCallback);
  return context;
}

// Verifies this process's own certificate as a peer would: without this a wrong one would be noticed at the
// first handshake only, and on another host.
absl::Status VerifyOwn(SSL_CTX* context, const Identity::Files& files) {
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> chain(X509_STORE_CTX_new(),
                                                                              X509_STORE_CTX_free);
  STACK_OF(X509)* between = nullptr;
  SSL_CTX_get0_chain_certs(context, &between);
  if (chain == nullptr || X509_STORE_CTX_init(chain.get(), SSL_CTX_get_cert_store(context),
                                              SSL_CTX_get0_certificate(context), between) != 1) {
    return absl::InternalError(absl::StrCat("verify ", files.certificate,
                                            ": OpenSSL cannot start the check (", TakeOpenSslErrors(),
                                            "); give this process more memory"));
  }
  if (X509_verify_cert(chain.get()) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("verify ", files.certificate, " (security.certificate) against ", files.ca,
                   " (security.ca): ", X509_verify_cert_error_string(X509_STORE_CTX_get_error(chain.get())),
                   "; let the authority of security.ca issue another certificate"));
}

absl::Status CheckKeyIsPrivate(const std::string& path) {
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) return ErrnoStatus(errno, "look at", path);
  if ((found.st_mode & S_IROTH) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("load ", path, " (security.key): every user can read the file; run chmod 0600 ", path));
}

// A file's state, to see that it has changed. The inode changes where a file is renamed into place, or where
// a link is swapped, as Kubernetes does. A file that is missing has zeros.
using Stamp = std::tuple<dev_t, ino_t, off_t, int64_t, int64_t>;

std::vector<Stamp> StampsOf(const Identity::Files& files) {
  std::vector<Stamp> stamps;
  for (const std::string* path : {&files.ca, &files.certificate, &files.key, &files.denied}) {
    struct stat found{};
    if (path->empty() || stat(path->c_str(), &found) != 0) found = {};
    stamps.emplace_back(found.st_dev, found.st_ino, found.st_size, found.st_mtim.tv_sec,
                        found.st_mtim.tv_nsec);
  }
  return stamps;
}

// The contents of the files when they were last read.
struct Loaded {
  Certificate self;
  std::shared_ptr<SSL_CTX> server;
  std::shared_ptr<SSL_CTX> client;
};

absl::StatusOr<Loaded> LoadCertificates(const Identity::Files& files, const SharedAdmission& admission) {
  TC_RETURN_IF_ERROR(CheckKeyIsPrivate(files.key));
  Loaded loaded;
  TC_ASSIGN_OR_RETURN(loaded.server, MakeContext(TLS_server_method(), files, admission));
  TC_ASSIGN_OR_RETURN(loaded.client, MakeContext(TLS_client_method(), files, admission));
  TC_RETURN_IF_ERROR(VerifyOwn(loaded.server.get(), files));
  absl::StatusOr<Certificate> self = DescribeCertificate(*SSL_CTX_get0_certificate(loaded.server.get()));
  if (!self.ok()) {
    return Annotate(self.status(), absl::StrCat("load ", files.certificate, " (security.certificate)"));
  }
  loaded.self = *std::move(self);
  if (loaded.self.name.trust_domain != admission->trust_domain) {
    return absl::InvalidArgumentError(
        absl::StrCat("load ", files.certificate, " (security.certificate): the certificate names ",
                     loaded.self.name.ToString(), ", and security.trust_domain is ", admission->trust_domain,
                     "; use one trust domain in a cluster"));
  }
  return loaded;
}

absl::StatusOr<std::string> DomainOf(const Identity::Files& files) {
  if (!files.trust_domain.empty()) {
    TC_RETURN_IF_ERROR(Annotate(CheckTrustDomain(files.trust_domain), "set security.trust_domain"));
    return files.trust_domain;
  }
  TC_ASSIGN_OR_RETURN(const std::string pem, ReadPemFile(files.certificate));
  const absl::StatusOr<Certificate> self = ReadCertificate(pem);
  if (!self.ok()) {
    return Annotate(self.status(), absl::StrCat("load ", files.certificate, " (security.certificate)"));
  }
  return self->name.trust_domain;
}

}  // namespace

// The admission stays the same for the life of the process; only its denied names change. The contexts are
// made anew whenever a file changes: connections that exist keep the context that they were made with, and
// new ones get the new context. One thread looks at the files (`look`). The mutex guards the results alone:
// files are read without it, so that a slow file system delays no handshake.
struct Identity::State {
  std::shared_ptr<Admission> admission = std::make_shared<Admission>();
  absl::Mutex mutex;
  std::vector<Stamp> stamps ABSL_GUARDED_BY(mutex);
  Loaded loaded ABSL_GUARDED_BY(mutex);
  absl::Status said;  // the outcome of the last look; used by its thread alone

  // The stamps are taken before the files are read, so a change during the read is seen at the next look.
  // They are kept only where all was read well. What cannot be used is tried again at each look: what is
  // wrong may pass without a change of a file, as when no descriptor is free for a moment. A key and its
  // certificate are replaced one after the other. A look between the two finds a pair that does not fit and
  // keeps the last one; the second file brings the next look.
  absl::Status Read(const Files& files) {
    std::vector<Stamp> found = StampsOf(files);
    {
      absl::MutexLock lock(&mutex);
      if (found == stamps) return absl::OkStatus();
    }
    // The denied names are read first and count at once, also where the certificates cannot be used now.
    absl::StatusOr<std::set<std::string, std::less<>>> names = ReadDenied(files.denied);
    absl::Status listed = names.status();
    if (listed.ok()) admission->denied.Set(*std::move(names));
    TC_ASSIGN_OR_RETURN(Loaded fresh, LoadCertificates(files, admission));
    absl::MutexLock lock(&mutex);
    loaded = std::move(fresh);
    if (listed.ok()) stamps = std::move(found);
    return listed;
  }

  void Look(const Files& files) {
    const absl::Status read = Read(files);
    // Said once for each kind of failure, and not at each look.
    if (!read.ok() && read != said) {
      LOG(ERROR) << "reload certificates (the earlier ones stay in use): " << read.message();
    }
    said = read;
    Certificate self;
    {
      absl::MutexLock lock(&mutex);
      self = loaded.self;
    }
    // In proportion: an authority like SPIRE gives certificates for an hour, an operator for years.
    if (self.not_after - absl::Now() < (self.not_after - self.not_before) / kLastPart) {
      LOG_EVERY_N_SEC(WARNING, 3600) << "certificate " << files.certificate
                                     << " (security.certificate) expires at "
                                     << absl::FormatTime(self.not_after)
                                     << "; replace the certificate before that time";
    }
  }

  std::unique_ptr<TaskLoop> look;  // last: it uses the others
};

absl::StatusOr<std::shared_ptr<Identity>> Identity::Load(const Files& files, absl::Duration look_every) {
  for (const auto& [path, key] : {std::pair{&files.ca, "security.ca"},
                                  {&files.certificate, "security.certificate"},
                                  {&files.key, "security.key"}}) {
    if (path->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("load certificates: ", key,
                       " is empty; set security.ca, security.certificate and security.key, or none"));
    }
  }
  auto state = std::make_unique<State>();
  TC_ASSIGN_OR_RETURN(state->admission->trust_domain, DomainOf(files));
  // Here, at the start of a process, files that cannot be used are an error. Look only logs them.
  TC_RETURN_IF_ERROR(state->Read(files));
  std::shared_ptr<Identity> identity(new Identity(files, std::move(state)));
  State* const kept = identity->state_.get();
  kept->look = TaskLoop::Every(look_every, [kept, &own = identity->files_] { kept->Look(own); });
  return identity;
}

Identity::Identity(const Files& files, std::unique_ptr<State> state)
    : files_(files), state_(std::move(state)) {}

// The thread that looks at the files ends first: it uses the rest.
Identity::~Identity() { state_->look.reset(); }

const std::string& Identity::trust_domain() const { return state_->admission->trust_domain; }

Certificate Identity::self() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->loaded.self;
}

std::shared_ptr<ssl_ctx_st> Identity::ServerContext() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->loaded.server;
}

std::shared_ptr<ssl_ctx_st> Identity::ClientContext() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->loaded.client;
}

absl::StatusOr<Certificate> Identity::PeerOf(const ssl_st* connection) const {
  const X509* const certificate = SSL_get0_peer_certificate(connection);
  // For a session that was resumed, this is the result of the first handshake.
  if (certificate == nullptr || SSL_get_verify_result(connection) != X509_V_OK) {
    return absl::UnauthenticatedError(
        "authenticate a peer: the peer showed no certificate that security.ca verifies; give the peer a "
        "certificate of this cluster's authority");
  }
  absl::StatusOr<Certificate> peer = DescribeCertificate(*certificate);
  if (!peer.ok()) return Annotate(peer.status(), "authenticate a peer");
  TC_RETURN_IF_ERROR(CheckPeer(*peer));
  return peer;
}

absl::Status Identity::CheckPeer(const Certificate& peer) const {
  if (absl::Now() > peer.not_after) {
    return absl::UnauthenticatedError(
        absl::StrCat("authenticate ", peer.name.ToString(), ": the peer's certificate expired at ",
                     absl::FormatTime(peer.not_after), "; issue another certificate for this name"));
  }
  return CheckName(peer.name);
}

absl::Status Identity::CheckName(const Name& peer) const { return state_->admission->Check(peer); }

}  // namespace tensorcast::security
