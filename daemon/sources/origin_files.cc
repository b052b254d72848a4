#include "daemon/sources/origin_files.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/safetensors/safetensors.h"
#include "core/source/object_source.h"

namespace tensorcast::daemon {
namespace {

absl::StatusOr<ObjectReaders> OpenAll(const RequestContext& context, const ObjectStore& store,
                                      const Origin& origin) {
  if (origin.objects.empty()) return absl::FailedPreconditionError("the origin names no file");
  ObjectReaders objects;
  for (const ObjectIdentity& object : origin.objects) {
    TC_ASSIGN_OR_RETURN(objects.emplace_back(), store.OpenAgain(context, object));
  }
  return objects;
}

// The model that the objects are now, which is the imported one as far as their versions tell.
absl::StatusOr<SafetensorsModel> OpenOrigin(const RequestContext& context, const ObjectStore& store,
                                            const Origin& origin) {
  TC_ASSIGN_OR_RETURN(const ObjectReaders objects, OpenAll(context, store, origin));
  return ReadSafetensors(context, objects);
}

constexpr int kMaxChecksAtOnce = 8;

}  // namespace

bool IsAboutOriginFiles(const absl::Status& error) {
  return absl::IsNotFound(error) || absl::IsPermissionDenied(error) || absl::IsInvalidArgument(error) ||
         absl::IsFailedPrecondition(error);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const RequestContext& context,
                                                              const ObjectStore& store, const Origin& origin,
                                                              const Manifest& manifest, uint32_t share,
                                                              uint32_t shares) {
  TC_ASSIGN_OR_RETURN(SafetensorsModel model, OpenOrigin(context, store, origin));
  if (!SameImage(model.layout, manifest.layout())) {
    return absl::DataLossError(absl::StrCat(
        origin.objects[0].uri, " is no longer what was imported: its tensors changed; import it again"));
  }
  SourceInfo info;
  info.outside = IsShared(origin);
  info.share = share;
  info.shares = shares;
  return MakeObjectSource(std::move(model.objects), std::move(model.extents), manifest.layout().image_bytes,
                          std::move(info));
}

absl::StatusOr<OriginChecker::Finding> OriginChecker::Check(const RequestContext& context,
                                                            const Origin& origin) {
  const absl::Cleanup ended = [this] { running_.fetch_sub(1); };
  if (const int others = running_.fetch_add(1); others >= kMaxChecksAtOnce) {
    return absl::ResourceExhaustedError(
        absl::StrCat(others, " checks of imported files are under way: does their disk still answer?"));
  }
  if (IsShared(origin)) return CheckShared(context, origin);
  const absl::Status looked = OpenOrigin(context, *store_, origin).status();
  if (!looked.ok() && !IsAboutOriginFiles(looked)) return looked;
  return Finding{.intact = looked.ok(), .reason = std::string(looked.message())};
}

absl::StatusOr<OriginChecker::Finding> OriginChecker::CheckShared(const RequestContext& context,
                                                                  const Origin& origin) const {
  if (!std::ranges::all_of(origin.objects, is_immutable_)) return Finding{.is_mutable = true};
  const absl::Status looked = OpenAll(context, *store_, origin).status();
  // A version that was removed does not come back. That this node may not read it, or that its store does not
  // answer, says nothing of it.
  if (looked.ok() || absl::IsNotFound(looked) || absl::IsFailedPrecondition(looked)) {
    return Finding{.intact = looked.ok(), .reason = std::string(looked.message())};
  }
  return absl::FailedPreconditionError(looked.message());
}

}  // namespace tensorcast::daemon
