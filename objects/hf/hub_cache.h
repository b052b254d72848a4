// The files that huggingface_hub downloaded to this host. Its layout:
//
//   models--org--name/refs/<revision>             a file with the commit
//   models--org--name/snapshots/<commit>/<path>   links to
//   models--org--name/blobs/<name>                the bytes; 64 digits are their SHA-256, 40 are git's
//
// Nothing is written there. Stateless; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/artifact/origin.h"
#include "core/memory/host_pool.h"
#include "objects/credentials/profile.h"
#include "objects/hf/hub_name.h"
#include "objects/http/secret.h"

namespace tensorcast::objects {

// HF_HUB_CACHE, else hub in HF_HOME, else huggingface/hub in the user's cache folder.
std::string HubCacheFolder(const Environment& environment);
// HF_TOKEN, else the file that `hf auth login` writes. Empty: there is none.
Secret HubToken(const Environment& environment);

// The folder of the revision's files. NOT_FOUND when it is not in the cache. Some of its files may be
// missing.
absl::StatusOr<std::string> CachedSnapshot(const std::string& cache_folder, const HubName& name);

// The SHA-256 that the object's identity promises in hexadecimal, by the name of its blob or by the version
// that a hub gives large files; empty: it promises none.
std::string PromisedSha256(const ObjectIdentity& identity);
// DATA_LOSS when `sha256` (Sha256::Hex) is not what the object's identity promises. OK where it promises
// nothing.
absl::Status CheckSha256(const ObjectIdentity& identity, std::string_view sha256);

// The SHA-256 of bytes that come in pieces, in their order. Thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(ConstHostSpan bytes);
  std::string Hex();  // once

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::objects
