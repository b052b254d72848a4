// Reads the cache folder of huggingface_hub: the files that it downloaded to this host. Its layout:
//
//   models--org--name/refs/<revision>             a file with the commit
//   models--org--name/snapshots/<commit>/<path>   a link to a blob
//   models--org--name/blobs/<name>                the bytes; a name of 64 digits is their SHA-256, a name of
//                                                 40 digits is git's id
//
// This code never writes to the folder. Stateless; thread-safe.
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

// $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else huggingface/hub in $XDG_CACHE_HOME or
// $HOME/.cache.
std::string HubCacheFolder(const Environment& environment);
// The token in HF_TOKEN, else in the file $HF_TOKEN_PATH, which is by default the file that `hf auth login`
// writes. Empty without a token.
Secret HubToken(const Environment& environment);
// True if HF_HUB_OFFLINE is 1, ON, YES or TRUE (upper or lower case), as huggingface_hub reads it.
bool HubIsOffline(const Environment& environment);

// The cache's folder with the files of the name's revision. Some of the files may be missing. NOT_FOUND if
// the cache does not have the revision.
absl::StatusOr<std::string> CachedSnapshot(const std::string& cache_folder, const HubName& name);

// The SHA-256, in hexadecimal, in the object's identity. A hub puts it in the version of a large file, and a
// cached blob may have it as its name. Empty if the identity has none.
std::string PromisedSha256(const ObjectIdentity& identity);
// DATA_LOSS if `sha256` (Sha256::Hex) differs from PromisedSha256. OK if PromisedSha256 is empty.
absl::Status CheckSha256(const ObjectIdentity& identity, std::string_view sha256);

// Computes the SHA-256 of bytes that are added in pieces. Thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(ConstHostSpan bytes);
  std::string Hex();  // the digest in hexadecimal; ends the computation, so call it once

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::objects
