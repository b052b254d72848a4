#include "daemon/sources/origin_files.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/object_uri.h"
#include "core/disk/packed_format.h"
#include "core/safetensors/beside.h"
#include "core/safetensors/safetensors.h"
#include "core/source/object_source.h"

namespace tensorcast::daemon {
namespace {

// The objects, which are what was imported as far as their versions tell.
absl::StatusOr<ObjectReaders> OpenOrigin(const RequestContext& context, const ObjectStore& store,
                                         const Origin& origin) {
  if (origin.objects.empty()) {
    return absl::FailedPreconditionError(
        "open the origin: the origin names no file; import the artifact again");
  }
  ObjectReaders objects;
  for (const ObjectIdentity& object : origin.objects) {
    TC_ASSIGN_OR_RETURN(objects.emplace_back(), store.OpenAgain(context, object));
  }
  return objects;
}

// A few bytes are read, since a file can be there and not be readable.
constexpr uint64_t kFirstBytes = 8;

absl::Status ReadFirstBytes(const RequestContext& context, const ObjectStore& store, const Origin& origin) {
  TC_ASSIGN_OR_RETURN(const ObjectReaders objects, OpenOrigin(context, store, origin));
  for (const std::shared_ptr<ObjectReader>& object : objects) {
    const uint64_t bytes = std::min(kFirstBytes, object->identity().bytes);
    TC_RETURN_IF_ERROR(ReadBytes(context, *object, 0, bytes).status());
  }
  return absl::OkStatus();
}

// `opened`: a SafetensorsModel, or FilesBeside.
template <class Opened>
absl::StatusOr<OriginExtents> ExtentsOf(Opened opened, const Origin& origin, const Manifest& manifest) {
  if (!SameImage(opened.layout, manifest.layout())) {
    return absl::DataLossError(
        absl::StrCat("open ", origin.objects[0].uri, ": the ",
                     manifest.kind() == ArtifactKind::kFiles ? "files beside the tensors" : "tensors",
                     " of the model changed after the import; import the model again"));
  }
  return OriginExtents{.objects = std::move(opened.objects), .extents = std::move(opened.extents)};
}

bool IsPacked(const Origin& origin) {
  if (origin.objects.size() != 1) return false;
  const std::string_view uri = origin.objects[0].uri;
  return IsObjectUri(uri) && !ArtifactIdOfFileName(uri.substr(uri.rfind('/') + 1)).empty();
}

// The image of a packed file: one extent of one object. Its chunks are compared with the manifest as those of
// any source; here that they are as many.
absl::StatusOr<OriginExtents> OpenPacked(const RequestContext& context, const ObjectStore& store,
                                         const Origin& origin, const Manifest& manifest) {
  TC_ASSIGN_OR_RETURN(ObjectReaders objects, OpenOrigin(context, store, origin));
  TC_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(context, *objects[0], 0, kPackedHeaderBytes));
  const absl::StatusOr<PackedHeader> header =
      DecodePackedHeader(std::as_bytes(std::span(bytes)), origin.objects[0].bytes);
  if (!header.ok()) return Annotate(header.status(), absl::StrCat("open ", origin.objects[0].uri));
  if (header->image_bytes != manifest.layout().image_bytes) {
    return absl::DataLossError(absl::StrCat("open ", origin.objects[0].uri,
                                            ": the object is not a packed file of ", manifest.id(),
                                            "; archive the artifact again"));
  }
  return OriginExtents{.objects = std::move(objects),
                       .extents = {{.object_offset = header->image_offset, .bytes = header->image_bytes}}};
}

// Each check may hang with its disk: more of them would only take more threads.
constexpr int kMaxChecksAtOnce = 8;

}  // namespace

bool IsAboutOriginFiles(const absl::Status& error) {
  return absl::IsNotFound(error) || absl::IsPermissionDenied(error) || absl::IsInvalidArgument(error) ||
         absl::IsFailedPrecondition(error);
}

absl::StatusOr<OriginExtents> OpenOriginExtents(const RequestContext& context, const ObjectStore& store,
                                                const Origin& origin, const Manifest& manifest) {
  if (IsPacked(origin)) return OpenPacked(context, store, origin, manifest);
  TC_ASSIGN_OR_RETURN(ObjectReaders objects, OpenOrigin(context, store, origin));
  if (manifest.kind() == ArtifactKind::kFiles) {
    std::vector<std::string> paths;
    for (const Tensor& file : manifest.layout().tensors) paths.push_back(file.name);
    TC_ASSIGN_OR_RETURN(FilesBeside files, FilesOf(std::move(objects), paths));
    return ExtentsOf(std::move(files), origin, manifest);
  }
  TC_ASSIGN_OR_RETURN(SafetensorsModel model, ReadSafetensors(context, objects));
  return ExtentsOf(std::move(model), origin, manifest);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const RequestContext& context,
                                                              const ObjectStore& store, const Origin& origin,
                                                              const Manifest& manifest, uint32_t share,
                                                              uint32_t shares) {
  TC_ASSIGN_OR_RETURN(OriginExtents opened, OpenOriginExtents(context, store, origin, manifest));
  SourceInfo info;
  info.outside = IsShared(origin);
  info.share = share;
  info.shares = shares;
  return MakeObjectSource(std::move(opened.objects), std::move(opened.extents), manifest.layout().image_bytes,
                          std::move(info));
}

// A check that hangs keeps its count. So a disk that does not answer takes kMaxChecksAtOnce threads, and
// later checks are refused at once.
absl::StatusOr<OriginChecker::Finding> OriginChecker::Check(const RequestContext& context,
                                                            const Origin& origin) {
  // Before the count is raised: the refusal below gives its own count back as well.
  const absl::Cleanup ended = [this] { running_.fetch_sub(1); };
  if (const int others = running_.fetch_add(1); others >= kMaxChecksAtOnce) {
    return absl::ResourceExhaustedError(
        absl::StrCat("check imported files: ", others,
                     " other checks already run, which is the max; check whether the disks "
                     "with the imported files still answer"));
  }
  if (IsShared(origin)) return CheckShared(context, origin);
  const absl::Status looked = ReadFirstBytes(context, *store_, origin);
  if (!looked.ok() && !IsAboutOriginFiles(looked)) return looked;
  return Finding{.intact = looked.ok(), .reason = std::string(looked.message())};
}

absl::StatusOr<OriginChecker::Finding> OriginChecker::CheckShared(const RequestContext& context,
                                                                  const Origin& origin) const {
  if (!std::ranges::all_of(origin.objects, is_immutable_)) return Finding{.is_mutable = true};
  const absl::Status looked = OpenOrigin(context, *store_, origin).status();
  // A version that was removed does not come back. That this node may not read it, or that its store does not
  // answer, says nothing of it.
  if (looked.ok() || absl::IsNotFound(looked) || absl::IsFailedPrecondition(looked)) {
    return Finding{.intact = looked.ok(), .reason = std::string(looked.message())};
  }
  return absl::FailedPreconditionError(looked.message());
}

}  // namespace tensorcast::daemon
