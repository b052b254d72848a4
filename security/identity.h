// The name of this process, and the peers that it trusts: its certificate with its key, its authority, and
// the names that it refuses. Made once a process; every connection between hosts asks it.
//
// The files are read again when they change, by a thread of its own: what is made from then on has the new
// ones, connections that there are go on. Files that cannot be used are said in the log and change nothing.
//
// Thread-safe. What it returns may outlive it.
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
  // Paths of PEM files, but for the last two.
  struct Files {
    std::string ca;           // the authorities that are trusted
    std::string certificate;  // of this process, with those between it and the authority behind it
    std::string key;
    std::string denied;        // names that are refused, one a line, # begins a remark; empty: none are
    std::string trust_domain;  // of the names that are accepted; empty: that of this process's certificate
  };

  // INVALID_ARGUMENT when the files do not fit together: the key is another's, the certificate is not of that
  // authority, has no name of ours or one of another domain, or is not good now. PERMISSION_DENIED when every
  // user can read the key; otherwise as ErrnoStatus.
  static absl::StatusOr<std::shared_ptr<Identity>> Load(const Files& files,
                                                        absl::Duration look_every = absl::Seconds(1));
  ~Identity();
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  const Files& files() const { return files_; }
  const std::string& trust_domain() const;
  // As the files are now.
  Certificate self() const;

  // OpenSSL's context for the next connection of either end, never null. TLS 1.3 alone; both sides show a
  // certificate, and a handshake fails when the peer's is not of our authority, not good now, has no name of
  // ours in our trust domain, or one that is denied.
  std::shared_ptr<ssl_ctx_st> ServerContext() const;
  std::shared_ptr<ssl_ctx_st> ClientContext() const;
  // The peer at the other end of a connection made by one of these. Looks again whether the name is denied
  // and the certificate good: a session that was resumed, or lived long, is checked by this alone. REQUIRES:
  // its handshake is done. UNAUTHENTICATED, PERMISSION_DENIED as CheckPeer.
  absl::StatusOr<Certificate> PeerOf(const ssl_st* connection) const;

  // Whether a peer with this certificate is let in at this moment; its chain was verified by TLS.
  // PERMISSION_DENIED for another trust domain and for a denied name, UNAUTHENTICATED when its time is over.
  absl::Status CheckPeer(const Certificate& peer) const;
  // As CheckPeer, for a name with a certificate that is good.
  absl::Status CheckName(const Name& peer) const;

 private:
  struct State;
  explicit Identity(const Files& files, std::unique_ptr<State> state);
  const Files files_;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::security
