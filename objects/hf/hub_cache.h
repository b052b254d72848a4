// The files that huggingface_hub downloaded to this host. Its layout:
//
//   models--org--name/refs/<revision>             a file with the commit
//   models--org--name/snapshots/<commit>/<path>   links to
//   models--org--name/blobs/<name>                the bytes; 64 digits are their SHA-256, 40 are git's
//
// Nothing is written there. Stateless; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"
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
// Reads the object to its end. DATA_LOSS when its bytes are not those that its identity promises. OK where it
// promises nothing.
absl::Status CheckPromisedSha256(const RequestContext& context, ObjectReader& object);

}  // namespace tensorcast::objects
