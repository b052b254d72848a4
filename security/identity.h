// The identity of this process, and the peers that it trusts: a certificate with its key, the trusted
// authorities, and the refused names. There is one per process; every connection between hosts uses it.
//
// A thread reads the files again when they change. After a change, new connections use the new files, and
// existing connections continue, except those of names that are now refused. Invalid files change nothing.
//
// Thread-safe. Returned objects may outlive the Identity.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "security/certificate.h"
#include "security/name.h"

// OpenSSL's SSL_CTX and SSL.
struct ssl_ctx_st;
struct ssl_st;

namespace tensorcast::security {

class Identity {
 public:
  // `ca`, `certificate` and `key` are paths of PEM files.
  struct Files {
    std::string ca;           // the trusted authorities
    std::string certificate;  // of this process, followed by intermediate certificates
    std::string key;
    std::string denied;        // file of refused names, one per line, # begins a comment; empty: none
    std::string trust_domain;  // of the accepted names; empty: the domain of `certificate`
  };

  // INVALID_ARGUMENT if the key does not belong to the certificate. INVALID_ARGUMENT if the certificate is
  // not from `ca`, has no name in the form of name.h, has a name of another domain, or is not valid now.
  // PERMISSION_DENIED if every user can read the key. Errors of file operations are those of ErrnoStatus.
  // `look_every`: how often the thread checks the files for changes.
  static absl::StatusOr<std::shared_ptr<Identity>> Load(const Files& files,
                                                        absl::Duration look_every = absl::Seconds(1));
  ~Identity();
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  const Files& files() const { return files_; }
  const std::string& trust_domain() const;
  // The certificate in the current files.
  Certificate self() const;

  // OpenSSL's context for the next connection, as server or as client; never null. Allows only TLS 1.3. Both
  // sides present a certificate. A handshake fails when the peer's certificate is not from a trusted
  // authority, is not valid now, has no name of name.h's form in the accepted trust domain, or has a denied
  // name.
  std::shared_ptr<ssl_ctx_st> ServerContext() const;
  std::shared_ptr<ssl_ctx_st> ClientContext() const;
  // The peer of a connection made with one of these contexts. Checks again that the name is not denied and
  // the certificate is valid, for resumed and long-lived sessions. REQUIRES: the handshake is done. Errors of
  // DescribeCertificate and CheckPeer; UNAUTHENTICATED also if the peer has no verified certificate.
  absl::StatusOr<Certificate> PeerOf(const ssl_st* connection) const;

  // Whether a peer with this certificate is accepted now; TLS has verified its chain. PERMISSION_DENIED for
  // another trust domain and for a denied name, UNAUTHENTICATED when the certificate has expired.
  absl::Status CheckPeer(const Certificate& peer) const;
  // The check of CheckPeer for a name alone. REQUIRES: the certificate with this name is valid.
  absl::Status CheckName(const Name& peer) const;

 private:
  struct State;
  explicit Identity(const Files& files, std::unique_ptr<State> state);
  const Files files_;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::security
