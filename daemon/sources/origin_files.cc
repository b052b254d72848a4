#include "daemon/sources/origin_files.h"

#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/disk/disk_source.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast::daemon {
namespace {

// The model that the files are now, which is the imported one as far as files tell.
absl::StatusOr<SafetensorsModel> OpenOrigin(const ImportRoots& roots, const v1::Origin& origin) {
  if (origin.files().empty()) return absl::FailedPreconditionError("the origin names no file");
  std::vector<OpenedFile> files;
  for (const v1::Origin::File& file : origin.files()) {
    TC_ASSIGN_OR_RETURN(files.emplace_back(), roots.OpenAgain(IdentityOfOriginFile(file)));
  }
  return ReadSafetensors(std::move(files));
}

constexpr int kMaxChecksAtOnce = 8;

}  // namespace

v1::Origin::File DescribeOriginFile(const FileIdentity& file) {
  v1::Origin::File described;
  described.set_path(file.path);
  described.set_bytes(file.bytes);
  described.set_mtime_ns(file.mtime_ns);
  described.set_ctime_ns(file.ctime_ns);
  described.set_inode(file.inode);
  described.set_device(file.device);
  return described;
}

FileIdentity IdentityOfOriginFile(const v1::Origin::File& file) {
  return {.path = file.path(),
          .bytes = file.bytes(),
          .mtime_ns = file.mtime_ns(),
          .ctime_ns = file.ctime_ns(),
          .inode = file.inode(),
          .device = file.device()};
}

bool IsAboutOriginFiles(const absl::Status& error) {
  return absl::IsNotFound(error) || absl::IsPermissionDenied(error) || absl::IsInvalidArgument(error) ||
         absl::IsFailedPrecondition(error);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const ImportRoots& roots,
                                                              const v1::Origin& origin,
                                                              const Manifest& manifest) {
  TC_ASSIGN_OR_RETURN(SafetensorsModel model, OpenOrigin(roots, origin));
  if (!SameImage(model.layout, manifest.layout())) {
    return absl::DataLossError(absl::StrCat(
        origin.files(0).path(), " is no longer what was imported: its tensors changed; import it again"));
  }
  return OpenFileSource(std::move(model.files), std::move(model.extents), manifest.layout().image_bytes);
}

absl::StatusOr<OriginChecker::Finding> OriginChecker::Check(const v1::Origin& origin) {
  const absl::Cleanup ended = [this] { running_.fetch_sub(1); };
  if (const int others = running_.fetch_add(1); others >= kMaxChecksAtOnce) {
    return absl::ResourceExhaustedError(
        absl::StrCat(others, " checks of imported files are under way: does their disk still answer?"));
  }
  const absl::Status looked = OpenOrigin(roots_, origin).status();
  if (!looked.ok() && !IsAboutOriginFiles(looked)) return looked;
  return Finding{.intact = looked.ok(), .reason = std::string(looked.message())};
}

}  // namespace tensorcast::daemon
