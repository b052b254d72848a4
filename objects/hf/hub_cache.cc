#include "objects/hf/hub_cache.h"

#include <openssl/evp.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tensorcast::objects {
namespace {

std::string HubHome(const Environment& environment) {
  if (std::string home = environment("HF_HOME"); !home.empty()) return home;
  std::string cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = absl::StrCat(environment("HOME"), "/.cache");
  return absl::StrCat(cache, "/huggingface");
}

}  // namespace

std::string HubCacheFolder(const Environment& environment) {
  for (const char* const variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string folder = environment(variable); !folder.empty()) return folder;
  }
  return absl::StrCat(HubHome(environment), "/hub");
}

Secret HubToken(const Environment& environment) {
  // As huggingface_hub has it: the variable goes before the file.
  if (const std::string token = environment("HF_TOKEN"); !token.empty()) return Secret(token);
  std::string file = environment("HF_TOKEN_PATH");
  if (file.empty()) file = absl::StrCat(HubHome(environment), "/token");
  return Secret(ReadSmallFile(file).value_or(""));
}

bool HubIsOffline(const Environment& environment) {
  const std::string value = environment("HF_HUB_OFFLINE");
  for (const char* const yes : {"1", "on", "yes", "true"}) {
    if (absl::EqualsIgnoreCase(value, yes)) return true;
  }
  return false;
}

absl::StatusOr<std::string> CachedSnapshot(const std::string& cache_folder, const HubName& name) {
  const std::string model =
      // huggingface_hub names the folder by the repository, with "--" in place of the slash (IsNamePart).
      absl::StrCat(cache_folder, "/models--", absl::StrReplaceAll(name.repository, {{"/", "--"}}));
  std::string commit = name.revision;
  if (!name.IsPinned()) commit = ReadSmallFile(absl::StrCat(model, "/refs/", name.revision)).value_or("");
  std::string snapshot = absl::StrCat(model, "/snapshots/", commit);
  // A file in refs can be stale or cut off, so the commit counts only where its snapshot is there.
  std::error_code error;
  if (IsHex(commit, 40) && std::filesystem::is_directory(snapshot, error)) return snapshot;
  return absl::NotFoundError(absl::StrCat("open ", name.Uri(), ": the revision is not in ", cache_folder,
                                          "; download the revision, or unset HF_HUB_OFFLINE"));
}

std::string PromisedSha256(const ObjectIdentity& identity) {
  std::string promised;
  const std::filesystem::path path(identity.uri);
  if (absl::StartsWith(identity.version, "sha256:")) {
    promised = absl::StripPrefix(identity.version, "sha256:");
    // The links of a snapshot are resolved by then, so a cached file has the path of its blob.
  } else if (path.is_absolute() && path.parent_path().filename() == "blobs") {
    promised = path.filename().string();
  }
  return IsHex(promised, 64) ? promised : "";
}

absl::Status CheckSha256(const ObjectIdentity& identity, std::string_view sha256) {
  const std::string promised = PromisedSha256(identity);
  if (promised.empty() || promised == sha256) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("check ", identity.uri, ": the SHA-256 of the bytes is ", sha256,
                                          " and should be ", promised,
                                          "; if the file is in a cache, remove the file; then import again"));
}

struct Sha256::State {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> digest{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  EVP_DigestInit_ex(state_->digest.get(), EVP_sha256(), nullptr);
}

Sha256::~Sha256() = default;

void Sha256::Add(ConstHostSpan bytes) { EVP_DigestUpdate(state_->digest.get(), bytes.data(), bytes.size()); }

std::string Sha256::Hex() {
  std::string digest(EVP_MD_size(EVP_sha256()), '\0');
  EVP_DigestFinal_ex(state_->digest.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return absl::BytesToHexString(digest);
}

}  // namespace tensorcast::objects
